"""Conversations outlive their server, however it ends. The scripted backend: it is the folder that is tested."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.conftest import Server, serving
from tests.tiny_models import TinyModel, write_tiny_model
from tests.waiting import BOUND_S, wait_until

pytestmark = pytest.mark.slow

PROMPT = "The same long question about the same long text. " * 20
NUM_BLOCKS = len(PROMPT) // 32


@pytest.fixture(autouse=True)
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_BACKEND", "scripted")


def ask(server: Server, prompt: str = PROMPT) -> tuple[str, int]:
    """The answer, and how many tokens of the prompt came from the cache."""
    request: dict[str, Any] = {"prompt": prompt, "max_tokens": 8, "temperature": 0}
    reply = httpx.post(f"{server.url}/v1/completions", json=request, trust_env=False, timeout=BOUND_S).json()
    return reply["choices"][0]["text"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def wait_until_kept(folder: Path, count: int = NUM_BLOCKS) -> None:
    wait_until(lambda: len(list(folder.glob("kv/*/*.kv"))) >= count)


def wait_until_read(server: Server, count: int = NUM_BLOCKS) -> None:
    """Until what lies in the folder is in memory: a request waits only so long for the disk, and then computes."""
    wait_until(lambda: read_ahead(server) >= count)


def read_ahead(server: Server) -> float:
    ask(server, "?")  # an idle engine tells nothing new
    text = httpx.get(f"{server.url}/metrics", trust_env=False, timeout=BOUND_S).text
    found = re.findall(r"^stoker_kv_read_ahead_blocks_total{.*} (.*)$", text, re.MULTILINE)
    return sum(map(float, found))


def kill(server: Server) -> None:
    """The server and its engine, without a warning."""
    process = psutil.Process(server.pid)
    for victim in [*process.children(recursive=True), process]:
        victim.kill()
    psutil.wait_procs([process], timeout=BOUND_S)


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
def test_a_conversation_outlives_its_server(tmp_path: Path, is_killed: bool) -> None:
    arguments = ("hello", "--ctx-size", "2048", "--cache-dir", str(tmp_path / "kept"))
    with serving(*arguments, log=tmp_path / "first") as server:
        first, num_cached = ask(server)
        assert num_cached == 0
        wait_until_kept(tmp_path / "kept")
        if is_killed:
            kill(server)
    with serving(*arguments, log=tmp_path / "second") as server:
        wait_until_read(server)
        again, num_cached = ask(server)
        assert again == first
        assert num_cached >= len(PROMPT) - 32


@pytest.mark.parametrize(("architecture", "count"), [("lfm2", NUM_BLOCKS), ("mamba2", 1)])
def test_the_state_of_a_hybrid_outlives_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, count: int
) -> None:
    """Keys and values, if there are any, are kept in blocks, as of other models, and states where prompts may go on."""
    monkeypatch.setenv("STOKER_BACKEND", "native")
    heads = ((4, 0), (4, 2), (4, 0)) if architecture == "lfm2" else ()
    model = TinyModel(architecture=architecture, type="Q8_0", num_layers=3, layer_heads=heads, has_head=False)
    path = write_tiny_model(tmp_path / "m.gguf", model)
    arguments = (str(path), "--ctx-size", "2048", "--cache-dir", str(tmp_path / "kept"))
    with serving(*arguments, log=tmp_path / "first") as server:
        first, num_cached = ask(server)
        assert num_cached == 0
        wait_until_kept(tmp_path / "kept", count)
    with serving(*arguments, log=tmp_path / "second") as server:
        wait_until_read(server, count)
        again, num_cached = ask(server)
        assert again == first
        assert num_cached >= len(PROMPT) - 64


def test_two_servers_share_a_folder(tmp_path: Path) -> None:
    arguments = ("hello", "--ctx-size", "2048", "--cache-dir", str(tmp_path / "kept"))
    with serving(*arguments, log=tmp_path / "first") as one:
        ask(one)
        wait_until_kept(tmp_path / "kept")
        with serving(*arguments, log=tmp_path / "second") as other:
            wait_until_read(other)
            assert ask(other)[1] >= len(PROMPT) - 32
            ask(other, PROMPT[::-1])
        assert ask(one)[1] >= len(PROMPT) - 32
