"""What a cluster costs on one machine: `stoker cluster serve` beside `stoker serve` with as many replicas, in turn.

    python benchmarks/cluster_gates.py smollm2 --replicas 1 --concurrency 1,16
    python benchmarks/cluster_gates.py smollm2 --replicas 2 --concurrency 16
    python benchmarks/cluster_gates.py scripted --hops 200

Both servers run the whole time, with one thread for each engine; `stoker bench` measures them in turn. Limits: at most
3 ms are added to the time to the first token and 1 ms to the time per token of a stream (medians), and two replicas
make at least 0.9 of the tokens per second. The CPU time of the front and of the entrance is that of their processes.
With `--hops`, three kinds of requests are sent to both servers in turn, one at a time: one that a front answers, one
that needs the engine's tokenizer, and the first token of a completion; and also to a cluster without direct connections
between front and replicas (`--replica-ports ''`).
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import httpx
import psutil

from stoker.bench.figures import Figures
from stoker.bench.results import Results, read_results

_START_S = 300.0
_STOP_S = 60.0


@contextmanager
def served(folder: Path, command: Sequence[str], model: str, replicas: int, *more: str) -> Generator[tuple[str, int]]:
    """A server with these replicas, all of them ready: its URL and its process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    line = [sys.executable, "-m", "stoker", *command, model, "--port", str(port)]
    line += ["--replicas", str(replicas), "--threads", "1", *more]
    log = folder / f"{command[0]}-{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(line, stdout=output, stderr=output)
    try:
        url = f"http://127.0.0.1:{port}"
        if not _is_ready_in_time(url, process, replicas):
            raise SystemExit(f"the server at {url} is not ready:\n{log.read_text()}")
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(_STOP_S)


def _is_ready_in_time(url: str, process: subprocess.Popen[bytes], replicas: int) -> bool:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        with (
            suppress(OSError),
            urllib.request.urlopen(f"{url}/health", timeout=5) as got,
        ):
            (model,) = json.load(got)["models"]
            states = [each["state"] for each in model.get("replicas") or [model]]
            if states.count("ready") == replicas:
                return True
        time.sleep(0.2)
    return False


def cpu_s(pid: int, name: str) -> float:
    """Processor time so far of those processes below this one whose command line has a name."""
    found = 0.0
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if name in " ".join(child.cmdline()):
                times = child.cpu_times()
                found += times.user + times.system
    return found


def measured(urls: Sequence[str], options: Sequence[str], file: Path) -> Results:
    """The servers in turn, by `stoker bench`."""
    named = [f"{name}={url}" for name, url in zip(("one", "cluster"), urls, strict=True)]
    command = [sys.executable, "-m", "stoker", "bench", "serve", *named, "--scenario", "distinct", "--json", str(file)]
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
    return read_results(file)


def report(results: Results, concurrency: int) -> None:
    """Prints the medians of all repetitions of both servers."""

    def of(server: str, value: Callable[[Figures], float]) -> float:
        samples = [s.figures for s in results.samples if (s.server, s.concurrency) == (server, concurrency)]
        return median([value(figures) for figures in samples])

    values: list[tuple[str, str, Callable[[Figures], float]]] = [
        ("time to the first token", "ms", lambda f: 1000 * (f.ttft_p50_s or 0.0)),
        ("time per token", "ms", lambda f: 1000 * concurrency / f.output_tokens_per_s),
        ("tokens per second", "", lambda f: f.output_tokens_per_s),
    ]
    for name, unit, value in values:
        one, many = of("one", value), of("cluster", value)
        print(
            f"{concurrency:3} streams  {name:24} one server {one:8.2f}{unit}  cluster {many:8.2f}{unit}"
            f"  {many - one:+7.2f}{unit}  x{many / one:.3f}"
        )


def hops(servers: Mapping[str, str], count: int) -> None:
    """Prints the median time of each kind of request at each server."""
    found: dict[tuple[str, str], list[float]] = {}
    with httpx.Client(timeout=60, trust_env=False) as client:
        for number in range(count):
            for name, url in servers.items():
                for kind, seconds in hop_times(client, url, f"a short text {number}"):
                    found.setdefault((kind, name), []).append(1000 * seconds)
    for kind in ("list of models", "tokenize", "first token"):
        times = {name: median(found[kind, name]) for name in servers}
        one = times.pop("one server")
        added = "".join(f"  {name} {value:6.2f} ms {value - one:+6.2f} ms" for name, value in times.items())
        print(f"{kind:15} one server {one:6.2f} ms{added}")


def hop_times(client: httpx.Client, url: str, text: str) -> Iterator[tuple[str, float]]:
    """The time of one request of each kind."""
    began = time.perf_counter()
    client.get(f"{url}/v1/models").raise_for_status()
    yield "list of models", time.perf_counter() - began
    began = time.perf_counter()
    client.post(f"{url}/tokenize", json={"content": text}).raise_for_status()
    yield "tokenize", time.perf_counter() - began
    began = time.perf_counter()
    with client.stream(
        "POST", f"{url}/v1/completions", json={"prompt": text, "max_tokens": 1, "stream": True}
    ) as reply:
        lines = reply.iter_lines()
        next(line for line in lines if line)
        yield "first token", time.perf_counter() - began
        for _ in lines:
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--concurrency", default="1,16")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--hops", type=int, default=0, help="number of rounds of single requests, and nothing else")
    given = parser.parse_args()
    options = ["--concurrency", given.concurrency, "--repetitions", str(given.repetitions)]
    options += ["--output-tokens", str(given.output_tokens)]
    with (
        tempfile.TemporaryDirectory() as name,
        served(Path(name), ("serve",), given.model, given.replicas) as (one, _),
        served(Path(name), ("cluster", "serve"), given.model, given.replicas) as (many, pid),
    ):
        if given.hops:
            cluster = served(Path(name), ("cluster", "serve"), given.model, given.replicas, "--replica-ports", "")
            with cluster as (through_ray, _):
                hops({"one server": one, "cluster": many, "through Ray Serve": through_ray}, given.hops)
            return
        before = [cpu_s(pid, part) for part in (":front", "haproxy")]
        results = measured([one, many], options, Path(name, "results.json"))
        spent = [cpu_s(pid, part) - old for part, old in zip((":front", "haproxy"), before, strict=True)]
    for concurrency in map(int, given.concurrency.split(",")):
        report(results, concurrency)
    tokens = sum(sample.figures.output_tokens for sample in results.samples if sample.server == "cluster")
    front, entrance = (1000 * each / tokens for each in spent)
    print(f"CPU time per token: front {front:.3f} ms, entrance {entrance:.3f} ms, over {tokens} tokens")


if __name__ == "__main__":
    main()
