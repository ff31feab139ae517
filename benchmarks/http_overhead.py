"""What HTTP costs: time between tokens through the server beside the same in process, and beside 256 idle streams.

    python benchmarks/http_overhead.py smollm2

Prints ratios: through HTTP over in process (`LLM.stream`; the aim is 1.05 at most), over the bare engine, stepped by
nothing but a loop, and with idle streams over without (1.00, give or take what repeats of one measurement differ by).
Measurements alternate, of each the mean of a whole answer; the least of each kind counts. The client is a bare socket,
so that what it costs is not taken for the server's. Run it on a machine that does nothing else.
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
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager

from stoker import LLM, EngineConfig, SamplingParams
from stoker.assembly import build_engine
from stoker.engine.engine import Engine
from stoker.engine.protocol import Output, Submit

PROMPT = "Once upon a time there was a"
START_S, STOP_S = 300, 60
NUM_IDLE = 256
_EVENT = b"data: {"
_LAST = b"data: [DONE]"


def main() -> None:
    parser = argparse.ArgumentParser(description="What HTTP costs, see the head of this file")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=128, help="of one answer")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--threads", type=int, help="that compute; not given: as many as the server would take")
    compare(parser.parse_args())


def compare(asked: argparse.Namespace) -> None:
    bare: list[float] = []
    in_process: list[float] = []
    through_http: list[float] = []
    beside_idle: list[float] = []
    with (
        serving(asked.model, asked.threads) as port,
        engine_here(asked.model, asked.threads) as engine,
        LLM(asked.model, parallel=1, threads=asked.threads) as llm,
    ):
        # In turn: whatever the machine does meanwhile, it does to all of them.
        for _ in range(asked.repetitions):
            bare.append(token_s_bare(engine, asked.tokens))
            in_process.append(token_s_in_process(llm, asked.tokens))
            through_http.append(token_s_through_http(port, asked.tokens))
            beside_idle.append(token_s_beside_idle(port, asked.tokens))
    report("the bare engine", bare)
    report("in process", in_process)
    report("through HTTP", through_http)
    report(f"through HTTP, beside {NUM_IDLE} idle streams", beside_idle)
    print(f"through HTTP / in process: {min(through_http) / min(in_process):.3f}")
    print(f"through HTTP / the bare engine: {min(through_http) / min(bare):.3f}")
    print(f"beside {NUM_IDLE} idle streams / alone: {min(beside_idle) / min(through_http):.3f}")


def report(name: str, seconds: list[float]) -> None:
    least, middle = min(seconds), sorted(seconds)[len(seconds) // 2]
    print(
        f"{name}: {1e3 * least:.3f} ms between two tokens (least of {len(seconds)}; the median is {1e3 * middle:.3f})"
    )


@contextmanager
def engine_here(model: str, threads: int | None) -> Generator[Engine]:
    engine, _ = build_engine(EngineConfig(model=model, parallel=1, threads=threads))
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
    return mean_gap_s(times)


def token_s_in_process(llm: LLM, num_tokens: int) -> float:
    stream = llm.stream(PROMPT, SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True))
    return mean_gap_s([time.perf_counter() for _ in stream])


def token_s_through_http(port: int, num_tokens: int) -> float:
    with opened(port, num_tokens) as connection:
        return mean_gap_s(read_times(connection))


def token_s_beside_idle(port: int, num_tokens: int) -> float:
    """The idle streams are open and wait in the queue: the server computes one request at a time."""
    with ExitStack() as streams:
        # A long one first, so that all wait; it leaves when they are open, and the one behind it is measured.
        first = streams.enter_context(opened(port, 100 * num_tokens))
        measured = streams.enter_context(opened(port, num_tokens))
        for _ in range(NUM_IDLE):
            streams.enter_context(opened(port, 1))
        first.close()
        return mean_gap_s(read_times(measured))


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


def mean_gap_s(times: list[float]) -> float:
    return (times[-1] - times[0]) / (len(times) - 1)


@contextmanager
def serving(model: str, threads: int | None) -> Generator[int]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "stoker", "serve", model, "--port", str(port), "--parallel", "1"]
    queue = ["--max-queue", str(max(2 * NUM_IDLE, EngineConfig().max_queue))]
    if threads is not None:
        queue += ["--threads", str(threads)]
    process = subprocess.Popen([*command, *queue], env={**os.environ, "STOKER_LOG_LEVEL": "warning"})
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
