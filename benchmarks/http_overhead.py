"""What HTTP costs: time between tokens through the server beside the same in process, and beside 256 idle streams.

    python benchmarks/http_overhead.py smollm2

Prints ratios: through HTTP over in process (`LLM.stream`; the aim is 1.05 at most), over the bare engine, stepped by
nothing but a loop, and with idle streams over without (1.00, give or take what the run says of itself).

A machine's speed changes from second to second, by more than what is looked for. So all sides live at the same time and
take turns in short answers, in a round there and back (A B C C B A): what drifts evenly during a round cancels out of
its ratio. A headline is the median of the rounds' ratios; behind it stands the interval that holds the medians of 95 %
of resamples of the rounds (the bootstrap), and that of the middle half of the rounds. The client is a bare socket, so
that what it costs is not taken for the server's. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TypeAlias

import numpy as np

from stoker import LLM, EngineConfig, SamplingParams
from stoker.assembly import build_engine
from stoker.engine.engine import Engine
from stoker.engine.protocol import Output, Submit

Side: TypeAlias = Callable[[], float]
"""Measures once: seconds between two tokens, on the average over one answer."""

PROMPT = "Once upon a time there was a"
START_S, STOP_S = 300, 60
NUM_IDLE = 256
NUM_RESAMPLES = 2000
MIN_ROUNDS = 3
_EVENT = b"data: {"
_LAST = b"data: [DONE]"
_BARE, _IN_PROCESS, _HTTP, _BESIDE = "the bare engine", "in process", "through HTTP", f"beside {NUM_IDLE} idle streams"


def main() -> None:
    parser = argparse.ArgumentParser(description="What HTTP costs, see the head of this file")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=32, help="of one answer")
    parser.add_argument("--idle-tokens", type=int, default=256, help="of one answer beside idle streams")
    parser.add_argument("--seconds", type=float, default=40, help="of measuring, for each of the two questions")
    parser.add_argument("--threads", type=int, help="that compute; not given: as many as the server would take")
    compare(parser.parse_args())


def compare(asked: argparse.Namespace) -> None:
    with (
        serving(asked.model, asked.threads) as port,
        engine_here(asked.model, asked.threads) as engine,
        LLM(asked.model, parallel=1, threads=asked.threads, max_draft=0) as llm,
    ):
        paths = {
            _BARE: partial(token_s_bare, engine, asked.tokens),
            _IN_PROCESS: partial(token_s_in_process, llm, asked.tokens),
            _HTTP: partial(token_s_through_http, port, asked.tokens),
        }
        report(in_turn(paths, asked.seconds), _HTTP, (_IN_PROCESS, _BARE))
        beside = {
            _HTTP: partial(token_s_beside_idle, port, asked.idle_tokens, 0),
            _BESIDE: partial(token_s_beside_idle, port, asked.idle_tokens, NUM_IDLE),
        }
        report(in_turn(beside, asked.seconds), _BESIDE, (_HTTP,))


def in_turn(sides: Mapping[str, Side], seconds: float) -> dict[str, list[float]]:
    """Of each side the mean of its two measurements in each round, for as long as that."""
    for side in sides.values():
        side()  # caches fill, threads come to life
    until = time.perf_counter() + seconds
    rounds: list[dict[str, float]] = []
    while time.perf_counter() < until or len(rounds) < MIN_ROUNDS:
        there = {name: side() for name, side in sides.items()}
        back = {name: sides[name]() for name in reversed(list(sides))}
        rounds.append({name: (there[name] + back[name]) / 2 for name in sides})
    return {name: [one[name] for one in rounds] for name in sides}


def report(found: Mapping[str, Sequence[float]], measured: str, beside: Sequence[str]) -> None:
    for name, seconds in found.items():
        print(
            f"{name}: {1e3 * float(np.median(seconds)):.3f} ms between two tokens (median of {len(seconds)} rounds; "
            f"the least is {1e3 * min(seconds):.3f})"
        )
    for name in beside:
        ratios = np.array(found[measured]) / np.array(found[name])
        low, high = interval_of_median(ratios)
        quarters = np.quantile(ratios, (0.25, 0.75))
        print(
            f"{measured} / {name}: {float(np.median(ratios)):.3f} ({low:.3f} to {high:.3f} with 95 % confidence; "
            f"half of the rounds {quarters[0]:.3f} to {quarters[1]:.3f})"
        )


def interval_of_median(values: np.ndarray) -> tuple[float, float]:
    """Where the medians of 95 % of resamples lie (Efron's percentile bootstrap)."""
    drawn = np.random.default_rng(0).choice(values, (NUM_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


@contextmanager
def engine_here(model: str, threads: int | None) -> Generator[Engine]:
    engine, _ = build_engine(EngineConfig(model=model, parallel=1, threads=threads, max_draft=0))
    try:
        engine.warm_up()
        yield engine
    finally:
        engine.close()


def token_s_bare(engine: Engine, num_tokens: int) -> float:
    sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    engine.add(engine.admit(Submit("measured", PROMPT, sampling)))
    times: list[float] = []
    while engine.has_work:
        times += [time.perf_counter() for event in engine.step() if isinstance(event, Output)]
    return mean_gap_s(times, num_tokens)


def token_s_in_process(llm: LLM, num_tokens: int) -> float:
    stream = llm.stream(PROMPT, SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True))
    return mean_gap_s([time.perf_counter() for _ in stream], num_tokens)


def token_s_through_http(port: int, num_tokens: int) -> float:
    with opened(port, num_tokens) as connection:
        return mean_gap_s(read_times(connection), num_tokens)


def token_s_beside_idle(port: int, num_tokens: int, num_idle: int) -> float:
    """The idle streams are open and wait in the queue: the server computes one request at a time."""
    wait_until_idle(port)
    with ExitStack() as streams:
        # A long one first, so that all wait; it leaves when they are open, and the one behind it is measured.
        first = streams.enter_context(opened(port, 100 * num_tokens))
        measured = streams.enter_context(opened(port, num_tokens))
        for _ in range(num_idle):
            streams.enter_context(opened(port, 1))
        first.close()
        return mean_gap_s(read_times(measured), num_tokens)


def wait_until_idle(port: int) -> None:
    """Those of the time before have left."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=START_S) as reply:
            lines: list[str] = reply.read().decode().splitlines()
        if all(line.endswith(" 0.0") for line in lines if line.startswith("stoker_requests_open")):
            return
        time.sleep(0.02)
    raise SystemExit("the server still computes for clients that have left")


@contextmanager
def opened(port: int, num_tokens: int) -> Generator[socket.socket]:
    """A stream that has begun: the head of its response was read."""
    asked = {"prompt": PROMPT, "max_tokens": num_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    body = json.dumps(asked).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), START_S) as connection:
        connection.sendall(head.encode() + body)
        got = connection.recv(1, socket.MSG_PEEK)  # nothing is taken: it may be followed by events at once
        if not got:
            raise SystemExit("the server closed the connection")
        yield connection


def read_times(connection: socket.socket) -> list[float]:
    times: list[float] = []
    while data := connection.recv(65536):
        times += [time.perf_counter()] * data.count(_EVENT)
        if _LAST in data:
            return times
    raise SystemExit("the stream ended too early")


def mean_gap_s(times: list[float], num_tokens: int) -> float:
    """Of the tokens, not of the pieces: whoever was late is given several tokens in one."""
    return (times[-1] - times[0]) / (num_tokens - 1)


@contextmanager
def serving(model: str, threads: int | None) -> Generator[int]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "stoker", "serve", model, "--port", str(port), "--parallel", "1"]
    options = ["--max-draft", "0", "--max-queue", str(max(2 * NUM_IDLE, EngineConfig().max_queue))]
    if threads is not None:
        options += ["--threads", str(threads)]
    process = subprocess.Popen([*command, *options], env={**os.environ, "STOKER_LOG_LEVEL": "warning"})
    try:
        wait_until_ready(port, process.poll)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_S)


def wait_until_ready(port: int, exit_code: Callable[[], int | None]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and exit_code() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=START_S):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise SystemExit("the server did not come up")


if __name__ == "__main__":
    main()
