"""`stoker cluster serve` on this machine, for tests."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from psutil import NoSuchProcess, Process

from tests.e2e.conftest import Server, serving

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'stoker[ray]'"
)
IS_LONG = "STOKER_TEST_NODES" in os.environ
"""`make test-cluster`: what takes minutes is done too, and as often as it should be."""
takes_minutes = pytest.mark.skipif(not IS_LONG, reason="takes minutes: make test-cluster")
WAIT_S = 60
PATIENCE_S = 300.0
"""Bound of whatever Ray does by itself; processes start for minutes on a busy machine."""
LIMIT_S = 1800
"""Bound of a test in which Ray starts, and does several such things."""
LONG_SCRIPT = [
    "short",
    {"when": "long", "text": "word " * 40_000},
    {"when": "read to its end", "text": "word " * 3_000},
]
"""The longer answers take much longer than what a test does meanwhile, and do not fit into the buffers on their way."""
ENDLESS = "a long one"
READABLE = "to be read to its end"
"""Its answer takes a minute at most, and the other one many minutes on a busy machine."""


@contextmanager
def cluster(*arguments: str, log: Path, **environ: str) -> Generator[Server]:
    """The command with these arguments, ready to answer. Its sockets lie below a short path, as Ray needs."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    try:
        with serving(
            *arguments,
            log=log,
            command=("cluster", "serve"),
            environ={"RAY_TMPDIR": folder, **environ},
        ) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def actors(server: Server, kind: str) -> list[Process]:
    """The processes of Serve's replicas of a deployment, such as `engine` or `front`."""
    return _below(server, "ray::Serve", f":{kind}")


def _below(server: Server, name: str, part: str) -> list[Process]:
    """Processes of the server's cluster whose name begins so, and whose command line has this part."""
    found: list[Process] = []
    for child in Process(server.pid).children(recursive=True):
        try:
            if child.name().startswith(name) and part in " ".join(child.cmdline()):
                found.append(child)
        except NoSuchProcess:
            continue
    return found


def engine_of(actor: Process) -> Process:
    """The process that computes for a replica."""
    (engine,) = [child for child in actor.children() if "stoker.assembly" in " ".join(child.cmdline())]
    return engine


def controllers(server: Server) -> list[Process]:
    """The process of Serve's controller, which starts, counts and updates replicas; none or one."""
    return _below(server, "ray::ServeContr", "")


class LongAnswer:
    """A longer answer of `LONG_SCRIPT`, read in the background: slowly until `read_on`, then as fast as it comes."""

    def __init__(self, url: str, prompt: str = ENDLESS, **more: Any) -> None:
        self._url = f"{url}/v1/completions"
        self._body = {"prompt": prompt, "max_tokens": 200_000, "stream": True, **more}
        self._is_wanted = True
        self._may_read_on, self._has_begun = threading.Event(), threading.Event()
        self.last = ""
        """The last line so far."""
        self.is_cut = False
        """The connection broke."""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        assert self._has_begun.wait(WAIT_S)

    def _read(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, trust_env=False, timeout=PATIENCE_S) as reply:
                for line in filter(None, reply.iter_lines()):
                    self.last = line
                    self._has_begun.set()
                    if not self._is_wanted:
                        return
                    self._may_read_on.wait(0.05)
        except httpx.TransportError:
            self.is_cut = True

    @property
    def has_ended(self) -> bool:
        """In whatever way."""
        return not self._thread.is_alive()

    @property
    def error(self) -> str | None:
        """The code of the event that ended it early."""
        if not self.has_ended or '"error"' not in self.last:
            return None
        return json.loads(self.last.removeprefix("data: "))["error"]["code"]

    def read_on(self) -> None:
        """As fast as it comes."""
        self._may_read_on.set()

    def end(self) -> str:
        """Reads all of it; returns the last line."""
        self.read_on()
        self._thread.join(PATIENCE_S)
        assert self.has_ended
        return self.last

    def leave(self) -> None:
        """As a client that has read enough."""
        self._is_wanted = False
        self.end()


def ask(url: str, prompt: str, max_tokens: int = 8, wait_s: float = WAIT_S, **more: Any) -> httpx.Response:
    """A completion."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
    return httpx.post(f"{url}/v1/completions", json=body, trust_env=False, timeout=wait_s)


def replicas(url: str) -> list[dict[str, Any]]:
    """The replicas of the first model, as `/health` lists them."""
    return httpx.get(f"{url}/health", trust_env=False, timeout=WAIT_S).json()["models"][0].get("replicas", [])


def num_ready(url: str) -> int:
    """How many of them can be asked."""
    return sum(replica["state"] == "ready" for replica in replicas(url))


def until_ready(url: str, count: int) -> None:
    """Waits until so many replicas can be asked. If that takes too long, it says the state and last error of each."""
    said: list[str] = []

    def are_ready() -> bool:
        found = replicas(url)
        said[:] = [" ".join(str(each.get(key, "-")) for key in ("id", "node", "state", "last_error")) for each in found]
        return sum(each["state"] == "ready" for each in found) == count

    try:
        until(are_ready)
    except AssertionError:
        pytest.fail(f"{count} replicas should be ready:\n" + "\n".join(said))


def until(is_true: Callable[[], bool]) -> None:
    """Looks again and again until something holds of a cluster that changes by itself."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if is_true():
                return
        except (httpx.TransportError, KeyError, ValueError):
            pass  # the entrance is being told of another front
        assert time.monotonic() < deadline
        time.sleep(0.1)
