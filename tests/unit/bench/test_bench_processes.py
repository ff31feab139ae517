"""Servers as processes: started, watched, ended, and asked without a server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from stoker.bench.client import get
from stoker.bench.offline import OfflineJob, OfflineOutcome, TokenCounts, run_offline
from stoker.bench.process_usage import pid_of, watching
from stoker.bench.request import Job, Target
from stoker.bench.server import LaunchedServer, RunningServer, identify
from stoker.errors import ModelNotLoaded, StokerError
from tests.unit.bench.scripted_server import scripted
from tests.waiting import BOUND_S, run

HTTP_SERVER = [sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1"]
BUSY = """
import sys
block = b"x" * 60_000_000
while sys.stdin.readline():
    sum(range(300_000))
    print("done", flush=True)
"""


def test_a_server_is_started_restarted_and_ended() -> None:
    async def main() -> None:
        server = LaunchedServer("web", HTTP_SERVER, ready_path="/")
        first = await server.start()
        pid = server.pid
        assert pid is not None
        assert pid_of(first.url) == pid
        assert (await server.start()).url == first.url, "it is up already"
        await server.stop()
        assert not psutil.pid_exists(pid)
        second = await server.start()
        assert server.pid != pid
        assert (await get(second, "/", BOUND_S))[0] == 200
        await server.stop()
        await server.stop()
        assert (await get(second, "/", BOUND_S))[0] == 0

    run(main())


def test_a_server_that_ends_by_itself_leaves_its_last_words() -> None:
    async def main() -> None:
        server = LaunchedServer("broken", [sys.executable, "-c", "raise SystemExit('no such file')"])
        try:
            with pytest.raises(ModelNotLoaded, match="broken ended with code 1: no such file"):
                await server.start()
        finally:
            await server.stop()

    run(main())


def test_a_server_that_is_never_ready_is_given_up() -> None:
    async def main() -> None:
        server = LaunchedServer("slow", HTTP_SERVER, ready_path="/missing", start_timeout_s=0.2)
        try:
            with pytest.raises(ModelNotLoaded, match=r"not ready after 0\.2 s"):
                await server.start()
        finally:
            await server.stop()

    run(main())


def test_a_first_start_prepares_into_a_folder_that_goes_with_it(tmp_path: Path) -> None:
    """A server that serves what lies in its folder, and has prepared a file there."""
    program = """
import http.server, os
os.chdir(os.environ["STOKER_PACKED_DIR"])
assert not os.listdir()
open("prepared", "w").close()
http.server.test(http.server.SimpleHTTPRequestHandler, port=int("{port}"), bind="127.0.0.1")
"""

    async def main() -> None:
        command = [sys.executable, "-c", program]
        server = LaunchedServer("first", command, ready_path="/prepared", prepared=("STOKER_PACKED_DIR", tmp_path))
        assert "first" in server.abilities
        for _ in range(2):
            target = await server.spawn(is_first=True)
            while (await get(target, "/prepared", 5))[0] != 200:
                server.check_alive()
                await asyncio.sleep(0.01)
            assert len(os.listdir(tmp_path)) == 1
        await server.stop()
        assert not os.listdir(tmp_path)

    run(main())


def test_files_that_are_forgotten_are_read_from_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(bytes(1 << 20))
    with path.open("rb") as file:
        os.fsync(file.fileno())
    server = LaunchedServer("cold", HTTP_SERVER, files=lambda: [path])
    assert "cold disk" in server.abilities
    server.forget_files()
    assert path.read_bytes() == bytes(1 << 20)
    assert "cold disk" not in LaunchedServer("cold", HTTP_SERVER).abilities


def test_a_server_that_does_not_stop_when_asked_is_killed() -> None:
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()"

    async def main() -> None:
        server = LaunchedServer("stubborn", [sys.executable, "-c", stubborn], stop_timeout_s=0.1)
        await server.spawn()
        pid = server.pid
        assert pid is not None
        await server.stop()
        assert not psutil.pid_exists(pid)

    run(main())


def test_a_server_is_killed_if_nobody_waits_for_its_end_any_longer() -> None:
    stubborn = """
import runpy, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
runpy.run_module("http.server", run_name="__main__", alter_sys=True)
"""

    async def main() -> None:
        server = LaunchedServer("stubborn", [sys.executable, "-c", stubborn, *HTTP_SERVER[3:]], ready_path="/")
        await server.start()
        process = server._process
        assert process is not None
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        # The loop alone may collect the process: else its transport may stay open, and be warned of in a later test.
        await asyncio.wait_for(process.wait(), BOUND_S)

    run(main())


@pytest.mark.slow
def test_a_server_ends_with_who_was_killed() -> None:
    program = """
import asyncio, sys
from stoker.bench.server import LaunchedServer

async def main():
    server = LaunchedServer("web", sys.argv[1:], ready_path="/")
    await server.start()
    print(server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    command = [sys.executable, "-c", program, *HTTP_SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = psutil.Process(int(process.stdout.readline()))
        process.kill()
    assert not psutil.wait_procs([started], BOUND_S)[1]


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(StokerError, match="cannot be started"):
        run(LaunchedServer("none", ["/no/such/program"]).start())


def test_a_running_server_must_answer() -> None:
    server = RunningServer("gone", Target(url="http://127.0.0.1:1"))
    with pytest.raises(ModelNotLoaded, match=r"nothing answers at http://127\.0\.0\.1:1"):
        run(server.start())


def test_a_running_server_of_this_machine_is_found_by_its_port() -> None:
    async def main() -> int | None:
        async with scripted() as running:
            server = RunningServer("here", running.target)
            await server.start()
            return server.pid

    assert run(main()) == os.getpid()


@pytest.mark.parametrize("models", [{"data": []}, {"object": "list"}, ["x"]])
def test_a_server_that_lists_no_models_gets_the_name_it_was_given(models: object) -> None:
    async def main() -> str:
        async with scripted(models=models) as running:
            return (await identify(running.target, "m.gguf")).name

    assert run(main()) == "m.gguf"


def test_memory_and_cpu_time_of_a_tree_are_seen() -> None:
    """The shell's child is the one that works."""

    async def main() -> None:
        process = await asyncio.create_subprocess_exec(
            "sh",
            "-c",
            f"\"{sys.executable}\" -c '{BUSY}'; true",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        async with watching(process.pid) as usage:
            for _ in range(20):
                process.stdin.write(b"\n")
                assert await process.stdout.readline() == b"done\n"
        process.stdin.close()
        await process.wait()
        resources = usage.resources
        assert resources.peak_pss_bytes is not None
        assert 60e6 < resources.peak_pss_bytes < 300e6
        assert resources.server_cpu_s is not None
        assert resources.server_cpu_s > 0
        assert resources.client_cpu_s is not None

    run(main())


def test_without_a_process_only_our_own_time_is_known() -> None:
    async def main() -> None:
        async with watching(None) as usage:
            pass
        assert usage.resources.peak_pss_bytes is usage.resources.server_cpu_s is None
        assert usage.resources.client_cpu_s is not None

    run(main())


JOBS = [Job((("user", text),), 3) for text in ("one", "two")]


def offline(program: str) -> OfflineOutcome:
    return run(run_offline([sys.executable, "-c", program], OfflineJob(["one", "two"], 3)))


def test_an_offline_program_reads_the_job_and_tells_the_outcome() -> None:
    outcome = offline(
        "import json, sys; job = json.load(sys.stdin); print('loading');"
        "counts = [dict(prompt_tokens=len(p), output_tokens=job['output_tokens']) for p in job['prompts']];"
        "print(json.dumps({'duration_s': 2.5, 'counts': counts}))"
    )
    answers = outcome.answers(JOBS)
    assert outcome.duration_s == 2.5
    assert [(a.num_prompt, a.num_output, a.is_timed, a.failure) for a in answers] == [(3, 3, False, None)] * 2


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise SystemExit('out of memory')", "ended with code 1: out of memory"),
        ("print('hello')", "said no outcome"),
        ("pass", "said no outcome"),
    ],
)
def test_an_offline_program_that_fails_fails_every_prompt(program: str, said: str) -> None:
    failures = [answer.failure for answer in offline(program).answers(JOBS)]
    assert [said in failure.detail for failure in failures if failure] == [True, True]


def test_an_offline_program_must_answer_every_prompt() -> None:
    (first, _) = OfflineOutcome(duration_s=1, counts=[TokenCounts(1, 3)]).answers(JOBS)
    assert first.failure is not None
    assert first.failure.detail == "1 answers for 2 prompts"


def test_the_log_of_a_server_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def main() -> None:
        server = LaunchedServer("web", HTTP_SERVER, ready_path="/")
        await server.start()
        assert os.listdir(tmp_path)
        await server.stop()

    run(main())
    assert not list(tmp_path.iterdir())
