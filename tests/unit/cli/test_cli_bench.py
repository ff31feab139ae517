"""The command line of `stoker bench`, over servers that follow a script."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from stoker.bench.results import read_results, write_results
from stoker.cli.bench_runs import _as_arguments
from stoker.cli.report import INTERRUPTED
from tests.unit.bench.bench_samples import make_answer, make_figures, make_results, make_sample
from tests.unit.bench.scripted_server import Exchange, Script, Scripted, answer, scripted
from tests.unit.cli.conftest import Stoker
from tests.waiting import BOUND_S

END_S = 120
"""A server that is told to end has 60 s before it is killed."""
SMALL = ("--concurrency", "1,2", "--requests", "2", "--repetitions", "2", "--output-tokens", "3")


@contextmanager
def served(script: Script = answer) -> Generator[Scripted]:
    """A scripted server on a thread of its own."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    found: list[Scripted] = []

    async def main() -> None:
        async with scripted(script, models={"data": [{"id": "tiny"}]}) as server:
            found.append(server)
            ended = asyncio.Event()
            loop.call_soon(ready.set)
            stop.append(lambda: loop.call_soon_threadsafe(ended.set))
            await ended.wait()

    stop: list[object] = []
    thread = threading.Thread(target=lambda: (loop.run_until_complete(main()), loop.close()))
    thread.start()
    assert ready.wait(BOUND_S)
    try:
        yield found[0]
    finally:
        stop[0]()  # type: ignore[operator]
        thread.join(BOUND_S)


@pytest.mark.parametrize("option", ["--json", "--plot"])
@pytest.mark.parametrize("place", ["nowhere/a.png", "."])
def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(
    stoker: Stoker, tmp_path: Path, option: str, place: str
) -> None:
    with served() as server:
        done = stoker("bench", "serve", server.url, *SMALL, option, str(tmp_path / place))
        assert not server.requests
    assert (done.code, done.out) == (2, "")
    assert f"{option}: " in done.err
    assert "cannot be written" in done.err


@contextmanager
def measuring(cache: Path, *ignored: signal.Signals) -> Generator[subprocess.Popen[bytes]]:
    """A measurement that takes for ever, in a process that does not hear some signals."""

    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may themselves run under `nohup`
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    environment = {**os.environ, "STOKER_BACKEND": "scripted", "STOKER_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "stoker", "bench", "babble", "--requests", "100000", "--output-tokens", "400"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, preexec_fn=ignore) as process:
        try:
            yield process
        finally:
            process.kill()


def started_by(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Waits until there are some."""
    started: list[psutil.Process] = []
    while not started and process.poll() is None:
        started = psutil.Process(process.pid).children(recursive=True)
    assert started
    return started


@pytest.mark.parametrize(
    ("number", "ignored"),
    [
        pytest.param(signal.SIGINT, (), id="Ctrl-C"),
        pytest.param(signal.SIGTERM, (), id="timeout", marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, (), id="terminal", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, (signal.SIGINT,), id="job-of-a-script"),
    ],
)
def test_who_ends_it_ends_the_server_that_it_started(
    number: signal.Signals, ignored: tuple[signal.Signals, ...], tmp_path: Path
) -> None:
    with measuring(tmp_path, *ignored) as process:
        started = started_by(process)
        process.send_signal(number)
        assert process.wait(END_S) == INTERRUPTED
    assert not psutil.wait_procs(started, END_S)[1]


def test_a_measurement_that_shall_outlive_its_terminal_does(stoker: Stoker) -> None:
    """As with `nohup`."""

    async def hang_up(exchange: Exchange) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await answer(exchange)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with served(hang_up) as server:
            assert stoker("bench", "serve", server.url, *SMALL).code == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_silence_must_last_some_time(stoker: Stoker, seconds: str) -> None:
    done = stoker("bench", "serve", "http://127.0.0.1:1", "--stall-after", seconds)
    assert done.code == 2
    assert "--stall-after must be above 0" in done.err


def test_a_running_server_is_measured_and_written_down(stoker: Stoker, tmp_path: Path) -> None:
    file, picture = tmp_path / "a.json", tmp_path / "a.png"
    with served() as server:
        done = stoker("bench", "serve", server.url, *SMALL, "--json", str(file), "--plot", str(picture))
    assert (done.code, done.err.count("distinct, " + server.url)) == (0, 2)
    assert "2 at a time" in done.out
    assert "0 of 4" in done.out
    assert picture.read_bytes().startswith(b"\x89PNG")
    results = read_results(file)
    assert results.servers[0].model.name == "tiny"
    assert [(s.concurrency, s.repetition) for s in results.samples] == [(1, 0), (2, 0), (1, 1), (2, 1)]
    assert results.command[:3] == ("stoker", "bench", "serve")
    assert results.machine.num_cores >= 1


def test_prompts_of_two_runs_against_a_running_server_differ(stoker: Stoker) -> None:
    with served() as server:
        for _ in range(2):
            assert stoker("bench", "serve", server.url, *SMALL).code == 0
        prompts = [body["prompt"] for body in server.requests]
        assert len(set(prompts)) == len(prompts)


def test_several_servers_are_compared(stoker: Stoker) -> None:
    with served() as one, served() as other:
        done = stoker("bench", "serve", f"one={one.url}", f"other={other.url}", *SMALL)
    assert done.code == 0
    assert "distinct: other / one" in done.out
    assert [line.split(",")[1] for line in done.err.splitlines()] == [" one", " other"] * 2


async def fail(exchange: Exchange) -> None:
    await exchange.status(500, b'{"error": {"message": "out of order"}}')


def test_failures_are_shown_and_end_with_1(stoker: Stoker) -> None:
    with served(fail) as server:
        done = stoker("bench", "serve", f"bad={server.url}", *SMALL)
    assert done.code == 1
    assert "! bad, distinct at 2: 4 of 4 requests failed: refused: status 500: out of order" in done.out
    assert "2 FAILED" in done.err or "4 FAILED" in done.err


def test_options_of_the_request_reach_the_server(stoker: Stoker) -> None:
    with served() as server:
        more = ("--model", "m", "--extra", '{"min_tokens": 3}', "--scenario", "shared", "--prompt-tokens", "50")
        assert stoker("bench", "serve", server.url, *SMALL, *more).code == 0
        assert {(body["model"], body["min_tokens"]) for body in server.requests} == {("m", 3)}
        assert max(len(body["prompt"].split()) for body in server.requests) == 50 + 32


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["serve", "localhost:8080"], "is not the URL of a server"),
        (["serve", "http://127.0.0.1:1", "--scenario", "fast"], "no scenario 'fast'"),
        (["serve", "http://127.0.0.1:1", "--concurrency", "1,two"], "--concurrency takes numbers"),
        (["serve", "http://127.0.0.1:1", "--concurrency", "0"], "at least 1"),
        (["serve", "http://127.0.0.1:1", "--itl-limit", "0"], "above 0"),
        (["serve", "http://127.0.0.1:1", "--extra", "[]"], "JSON object"),
        (["serve", "a=http://127.0.0.1:1", "a=http://127.0.0.1:2"], "same name"),
        (["serve", "http://127.0.0.1:1", "http://127.0.0.1:2", "--pid", "1"], "--pid can be given for a single server"),
        (["compare", "missing.json"], "cannot be read"),
    ],
)
def test_bad_input_has_a_clear_error(stoker: Stoker, args: list[str], said: str) -> None:
    done = stoker("bench", *args)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_nobody_there_is_an_error(stoker: Stoker) -> None:
    done = stoker("bench", "serve", "http://127.0.0.1:1")
    assert done.code == 3
    assert "nothing answers at http://127.0.0.1:1" in done.err


def test_compare_shows_ratios_and_refuses_what_differs(stoker: Stoker, tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.json" for name in ("before", "after", "other")}
    for name, ttft_s in (("before", 1.0), ("after", 0.5)):
        write_results(
            make_results(make_sample("stoker", figures=make_figures(make_answer(ttft_s=ttft_s)))), files[name]
        )
    done = stoker("bench", "compare", str(files["before"]), str(files["after"]))
    assert done.code == 0
    assert "distinct: after / before" in done.out
    assert "×0.50" in done.out
    changed = json.loads(files["after"].read_text())
    changed["servers"][0]["model"]["num_parameters"] = 7
    files["other"].write_text(json.dumps(changed))
    refused = stoker("bench", "compare", str(files["before"]), str(files["other"]))
    assert (refused.code, refused.out) == (2, "")
    assert "not comparable" in refused.err


@pytest.mark.parametrize("command", [["bench", "scripted", "--profile"], ["bench", "--profile", "scripted"]])
def test_profile_shows_stages_and_the_headline(stoker: Stoker, command: list[str]) -> None:
    done = stoker(*command)
    assert done.code == 0
    header = next(line for line in done.out.splitlines() if line.startswith("sampling"))
    assert header.split()[2:-2] == ["schedule", "bind", "forward", "mask", "sample", "detokenize", "publish"]
    assert "overhead at batch 8, greedy: " in done.out


def test_help_without_arguments(stoker: Stoker) -> None:
    assert "compare" in stoker("bench").out + stoker("bench").err
    assert "--scenario NAME" in stoker("bench", "serve", "--help").out
    assert "--config" not in stoker("bench", "serve", "--help").out
    assert "--parallel" in stoker("bench", "model", "--help").out


def test_settings_reach_the_server_under_the_names_of_its_options() -> None:
    assert _as_arguments("kv_cache_dir", "kept") == ["--cache-dir", "kept"]
    assert _as_arguments("ctx_size", 512) == ["--ctx-size", "512"]
    assert _as_arguments("lora", ["a=b", "c"]) == ["--lora", "a=b", "--lora", "c"]
