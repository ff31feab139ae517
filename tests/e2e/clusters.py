"""`stoker cluster serve` on this machine, for tests."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
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
WAIT_S = 60
PATIENCE_S = 300.0
"""Bound of whatever Ray does by itself; processes start for minutes on a busy machine."""


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
    found: list[Process] = []
    for child in Process(server.pid).children(recursive=True):
        try:
            if child.name().startswith("ray::Serve") and f":{kind}" in " ".join(child.cmdline()):
                found.append(child)
        except NoSuchProcess:
            continue
    return found


def engine_of(actor: Process) -> Process:
    """The process that computes for a replica."""
    (engine,) = [child for child in actor.children() if "stoker.assembly" in " ".join(child.cmdline())]
    return engine


def ask(url: str, prompt: str, max_tokens: int = 8, **more: Any) -> httpx.Response:
    """A completion."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
    return httpx.post(f"{url}/v1/completions", json=body, trust_env=False, timeout=WAIT_S)


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
