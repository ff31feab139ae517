"""Conversations outlive their server, however it ends. The scripted backend: it is the folder that is tested."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.conftest import Server, serving

WAIT_S = 60.0
PROMPT = "The same long question about the same long text. " * 20


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_BACKEND", "scripted")


def ask(server: Server, prompt: str = PROMPT) -> tuple[str, int]:
    """The answer, and how many tokens of the prompt came from the cache."""
    request: dict[str, Any] = {"prompt": prompt, "max_tokens": 8, "temperature": 0}
    reply = httpx.post(f"{server.url}/v1/completions", json=request, trust_env=False, timeout=WAIT_S).json()
    return reply["choices"][0]["text"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def wait_until_kept(folder: Path, num_blocks: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while len(list(folder.glob("kv/*/*.kv"))) < num_blocks:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill(server: Server) -> None:
    """The server and its engine, without a warning."""
    process = psutil.Process(server.pid)
    for victim in [*process.children(recursive=True), process]:
        victim.kill()
    psutil.wait_procs([process], timeout=WAIT_S)


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_a_conversation_outlives_its_server(tmp_path: Path, is_killed: bool) -> None:
    arguments = ("hello", "--ctx-size", "2048", "--cache-dir", str(tmp_path / "kept"))
    with serving(*arguments, log=tmp_path / "first") as server:
        first, num_cached = ask(server)
        assert num_cached == 0
        wait_until_kept(tmp_path / "kept", len(PROMPT) // 32)
        if is_killed:
            kill(server)
    with serving(*arguments, log=tmp_path / "second") as server:
        again, num_cached = ask(server)
        assert again == first
        assert num_cached >= len(PROMPT) - 32


def test_two_servers_share_a_folder(tmp_path: Path) -> None:
    arguments = ("hello", "--ctx-size", "2048", "--cache-dir", str(tmp_path / "kept"))
    with serving(*arguments, log=tmp_path / "first") as one:
        ask(one)
        wait_until_kept(tmp_path / "kept", len(PROMPT) // 32)
        with serving(*arguments, log=tmp_path / "second") as other:
            assert ask(other)[1] >= len(PROMPT) - 32
            ask(other, PROMPT[::-1])
        assert ask(one)[1] >= len(PROMPT) - 32
