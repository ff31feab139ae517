"""llama-servers that do not start, die, hang, or are somebody else; and what is left of them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import psutil
import pytest

from stoker.engine.protocol import Accepted, Output
from stoker.engine.question_messages import Tokenize
from stoker.errors import EngineCrashed, ModelNotLoaded
from stoker.runtime.external import incarnation, launcher
from tests.ports import free_port
from tests.unit.runtime.llama_server.fake import ANSWER, QUICK, Fake, answer, ask, event, text
from tests.waiting import BOUND_S, run, until


def is_running(pid: int) -> bool:
    """A zombie counts: somebody has not waited for it."""
    return psutil.pid_exists(pid)


def test_its_last_words_are_in_the_error_if_it_does_not_start(fake: Fake):
    fake.plan(start="exit")

    async def test() -> None:
        runtime = fake.runtime(start_s=10 * BOUND_S)  # an exit is seen at once
        with pytest.raises(EngineCrashed, match=r"exited with code 1: .*the tensors are cut off"):
            await runtime.start()
        health = runtime.health()
        assert (health.is_ready, health.state) == (False, "failed")
        assert "cut off" in (health.last_error or "")
        with pytest.raises(ModelNotLoaded):
            await anext(runtime.generate(ask()))
        await runtime.close()

    run(test())
    assert len(fake.pids()) == 1, "it was not tried again"
    assert not any(map(is_running, fake.pids()))


@pytest.mark.parametrize("plan", [{"start": "illegal"}, {"warming": "illegal"}])
def test_one_that_was_built_for_another_cpu_is_said_to_be(fake: Fake, plan: dict[str, str]):
    fake.plan(**plan)

    async def test() -> None:
        runtime = fake.runtime()
        with pytest.raises(ModelNotLoaded, match=r"was built for another CPU.* --llama-server-path"):
            await runtime.start()
        await runtime.close()

    run(test())
    assert len(fake.pids()) == 1, "it was not tried again"
    assert not any(map(is_running, fake.pids()))


def test_one_that_is_not_ready_in_time_is_killed(fake: Fake):
    fake.plan(start="hang", ignores_term=True)

    async def test() -> None:
        runtime = fake.runtime(start_s=0.3)
        with pytest.raises(ModelNotLoaded, match=r"not ready within 0\.3 s"):
            await runtime.start()
        await runtime.close()

    run(test())
    assert not any(map(is_running, fake.pids()))


def test_closing_while_it_starts_leaves_nothing(fake: Fake):
    fake.plan(start="hang")

    async def test() -> None:
        runtime = fake.runtime()
        starting = asyncio.ensure_future(runtime.start())
        await until(lambda: bool(fake.pids()))
        assert runtime.health().state == "starting"
        await runtime.close()
        with pytest.raises(ModelNotLoaded):
            await starting

    run(test())
    assert not any(map(is_running, fake.pids()))


def test_cancelling_the_start_leaves_nothing(fake: Fake):
    fake.plan(start="hang")

    async def test() -> None:
        starting = asyncio.ensure_future(fake.runtime().start())
        await until(lambda: bool(fake.pids()))
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    run(test())
    assert not any(map(is_running, fake.pids()))


def test_a_port_that_somebody_else_has_is_not_used(fake: Fake, monkeypatch: pytest.MonkeyPatch):
    taken, free = free_port(), free_port()
    with socket.create_server(("127.0.0.1", taken)):
        ports = [taken, free]
        monkeypatch.setattr(incarnation, "_free_port", lambda: ports.pop(0))

        async def test() -> None:
            async with fake.started() as runtime:
                assert await text(runtime, ask()) == "Hello"

        run(test())
    commands = [entry["command"] for entry in fake.asked()]
    assert [command[command.index("--port") + 1] for command in commands] == [str(taken), str(free)]


def test_a_healthy_stranger_is_not_taken_for_ours(fake: Fake):
    fake.plan(start="stranger")

    async def test() -> None:
        runtime = fake.runtime()
        with pytest.raises(EngineCrashed, match="no free port"):
            await runtime.start()
        await runtime.close()

    run(test())
    assert fake.asked("/completion") == []
    assert not any(map(is_running, fake.pids()))


def test_a_failed_warm_up_is_only_a_warning(fake: Fake, caplog: pytest.LogCaptureFixture):
    fake.plan(warm_up=500)

    async def test() -> None:
        async with fake.started() as runtime:
            assert await text(runtime, ask()) == "Hello"

    run(test())
    assert "could not be warmed up" in caplog.text


def test_its_output_is_drained(fake: Fake):
    fake.plan(noise=200_000)

    async def test() -> None:
        async with fake.started() as runtime:
            assert await text(runtime, ask()) == "Hello"

    run(test())


def test_a_crash_ends_what_has_begun_and_repeats_what_has_not(fake: Fake):
    fake.plan(answer=[event("x", tokens=[1], tokens_predicted=1), "hang"])

    async def test() -> None:
        async with fake.started(parallel=2) as runtime:
            begun = runtime.generate(ask("a", "begun"))
            await anext(begun)
            assert isinstance(await anext(begun), Output)
            fake.plan(answer=["hang"])
            waiting = runtime.generate(ask("b", "waiting"))
            assert isinstance(await anext(waiting), Accepted)
            next_output = asyncio.ensure_future(anext(waiting))
            await until(lambda: len(fake.asked("/completion")) == 2)
            fake.plan()
            assert runtime.server_pid is not None
            os.kill(runtime.server_pid, signal.SIGKILL)
            with pytest.raises(EngineCrashed, match="was killed by SIGKILL"):
                await anext(begun)
            output = await next_output
            assert isinstance(output, Output)
            assert output.text == "Hel"
            await waiting.aclose()
            health = runtime.health()
            assert (health.is_ready, health.num_restarts) == (True, 1)
            assert await text(runtime, ask()) == "Hello"

    run(test())
    assert len(fake.pids()) == 2
    assert len({entry["key"] for entry in fake.asked()}) == 2


def test_a_request_is_given_to_one_successor_only(fake: Fake):
    fake.plan(answer=["fail"])

    async def test() -> None:
        async with fake.started() as runtime:
            with pytest.raises(EngineCrashed, match="out of memory"):
                await answer(runtime, ask())
            fake.plan()
            await until(lambda: runtime.health().is_ready)
            assert await text(runtime, ask()) == "Hello"

    run(test())
    assert len(fake.asked("/completion")) == 3


def test_while_there_is_no_server_requests_are_refused(fake: Fake):
    slow = replace(QUICK, backoff_min_s=30.0, backoff_max_s=30.0, restart_wait_s=0.2)

    async def test() -> None:
        async with fake.started(supervision=slow) as runtime:
            fake.plan(answer=["die"])
            with pytest.raises(EngineCrashed):
                await answer(runtime, ask())
            assert runtime.health().state == "restarting"
            with pytest.raises(ModelNotLoaded) as caught:
                await anext(runtime.generate(ask()))
            assert caught.value.fields["retry_after_s"] == 30.0
            with pytest.raises(ModelNotLoaded):
                await runtime.ask(Tokenize("x"))

    run(test())


def test_a_server_that_hangs_is_started_again(fake: Fake, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stoker.runtime.external.supervisor.PROBE_S", 0.05)

    async def test() -> None:
        async with fake.started(supervision=replace(QUICK, heartbeat_timeout_s=0.2)) as runtime:
            fake.plan(health="hang")
            await until(lambda: runtime.health().state == "restarting")
            fake.plan()
            await until(lambda: runtime.health().is_ready)
            assert "said nothing" in (runtime.health().last_error or "")

    run(test())


def test_closing_while_a_stubborn_one_is_being_stopped_leaves_nothing(fake: Fake, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stoker.runtime.external.supervisor.PROBE_S", 0.05)
    fake.plan(ignores_term=True)

    async def test() -> None:
        async with fake.started(supervision=replace(QUICK, heartbeat_timeout_s=0.2)) as runtime:
            fake.plan(health="hang", ignores_term=True)
            await until(lambda: runtime.health().state == "restarting")

    run(test())


def test_one_that_computes_nothing_is_stalled_then_started_again(fake: Fake):
    fake.plan(answer=["hang"])

    async def test() -> None:
        async with fake.started(supervision=replace(QUICK, stall_after_s=0.1)) as runtime:
            waiting = asyncio.ensure_future(text(runtime, ask()))
            await until(lambda: runtime.health().state == "stalled")
            fake.plan(answer=["pause", *ANSWER])
            assert runtime._serving is not None
            supervisor, usual = runtime._serving.supervisor, runtime._serving.supervisor._times
            supervisor._times = replace(usual, stall_kill_s=0.2)
            await until(lambda: runtime.health().num_restarts == 1)
            supervisor._times = usual
            assert await waiting == "Hello", "it had not begun"
            health = runtime.health()
            assert "computed nothing" in (health.last_error or "")
            assert health.num_restarts == 1

    run(test())


def test_closing_ends_all_requests(fake: Fake):
    fake.plan(answer=[event("x", tokens=[1], tokens_predicted=1), "hang"])

    async def test() -> None:
        async with fake.started(parallel=1) as runtime:
            running, waiting = runtime.generate(ask("a", "running")), runtime.generate(ask("a", "waiting"))
            for stream in (running, running, waiting):
                await anext(stream)
            tasks = [asyncio.ensure_future(anext(stream)) for stream in (running, waiting)]
            await until(lambda: (beat := runtime.health().heartbeat) is not None and beat.num_waiting == 1)
            await runtime.close()
            for task in tasks:
                with pytest.raises(ModelNotLoaded, match="closed"):
                    await task
            assert runtime.health().state == "closed"

    run(test())
    assert len(fake.asked("SIGTERM")) == 1, "it was asked before it was killed"


def test_whoever_leaves_is_noticed_by_the_server(fake: Fake):
    fake.plan(answer=[event("x", tokens=[1], tokens_predicted=1)] * 5000)

    async def test() -> None:
        async with fake.started(parallel=1) as runtime:
            stream = runtime.generate(ask())
            await anext(stream)
            await anext(stream)
            await stream.aclose()
            fake.plan()
            assert await text(runtime, ask()) == "Hello"

    run(test())


PARENT = """
    import asyncio, sys
    from stoker.engine.config import EngineConfig
    from stoker.runtime.external.config import RuntimeConfig
    from stoker.runtime.external.runtime import ExternalRuntime
    from stoker.runtime.llama_server.served import LlamaServed

    async def main():
        config = EngineConfig(model="tiny", model_path=sys.argv[2], ctx_size=128, parallel=1, threads=1)
        served = LlamaServed(config, RuntimeConfig(llama_server_path=sys.argv[1]))
        runtime = ExternalRuntime(served, config)
        await runtime.start()
        print(runtime.server_pid, flush=True)
        await asyncio.sleep(600)

    asyncio.run(main())
"""


def test_it_dies_with_its_parent(fake: Fake):
    command = [sys.executable, "-c", textwrap.dedent(PARENT), str(fake.path), str(fake.model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        parent.kill()
        child.wait(60)


def test_without_help_of_the_kernel_a_keeper_ends_it(fake: Fake):
    """As on systems other than Linux."""
    code = f"import sys, runpy; sys.platform = 'other'; runpy.run_path({launcher.__file__!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, "0", str(fake.path), "--port", "0"]
    keeper = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert keeper.stdin is not None
    deadline = time.monotonic() + 60
    while not fake.pids():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child = psutil.Process(fake.pids()[0])
    assert child.ppid() == keeper.pid
    keeper.stdin.close()
    assert keeper.wait(60) == 0
    assert len(fake.asked("SIGTERM")) == 1
    assert not child.is_running()


def test_a_launcher_whose_parent_is_gone_starts_nothing(fake: Fake):
    done = subprocess.run([sys.executable, launcher.__file__, "1", str(fake.path)], check=False)
    assert done.returncode == 126
    assert fake.pids() == []


def test_a_program_that_cannot_be_run_is_named(fake: Fake, capfd: pytest.CaptureFixture[str]):
    done = subprocess.run([sys.executable, launcher.__file__, str(os.getpid()), str(fake.model)], check=False)
    assert done.returncode == 126
    assert "tiny.gguf cannot be started" in capfd.readouterr().err
