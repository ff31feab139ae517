"""A real `stoker serve` with a real model, shared by all end-to-end tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.ports import free_port

START_S = 180
STOP_S = 60


@dataclass(frozen=True)
class Server:
    """A running `stoker serve`."""

    url: str
    pid: int


@pytest.fixture(scope="session")
def served_smollm2(smollm2_server: Server) -> str:
    """The base URL of `stoker serve smollm2`, ready to answer."""
    return smollm2_server.url


@pytest.fixture(scope="session")
def smollm2_server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The same, with its process. Whoever harms it waits until it is well again."""
    assert smollm2_path.is_file()
    with serving("smollm2", log=tmp_path_factory.mktemp("served_smollm2") / "log") as server:
        yield server


@pytest.fixture(scope="session")
def served_minilm(minilm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of `stoker serve` with all-MiniLM-L6-v2."""
    with serving(str(minilm_path), log=tmp_path_factory.mktemp("served_minilm") / "log") as server:
        yield server.url


@contextmanager
def serving(
    *arguments: str,
    log: Path,
    command: Sequence[str] = ("serve",),
    environ: Mapping[str, str] | None = None,
    host: str = "127.0.0.1",
) -> Generator[Server]:
    """`stoker serve` with these arguments on a free port, ready to answer; it ends with the block."""
    port = free_port()
    line = [sys.executable, "-m", "stoker", *command, *arguments, "--host", host, "--port", str(port)]
    with log.open("wb") as output:
        own = {**os.environ, "PYTHONUNBUFFERED": "1", **(environ or {})}
        process = subprocess.Popen(line, stdout=output, stderr=output, env=own)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_healthy(url, process, log)
        yield Server(url, process.pid)
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_S)
    finally:
        process.kill()
        process.wait(STOP_S)


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server ended:\n{log.read_text()}"
        try:
            if httpx.get(f"{url}/health", trust_env=False, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    pytest.fail(f"the server was not ready after {START_S} s:\n{log.read_text()}")
