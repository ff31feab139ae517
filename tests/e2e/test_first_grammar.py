"""An idle engine makes what the first grammar needs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import serving
from tests.waiting import BOUND_S

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes where Linux lists them"),
]
PROGRAM = "stoker.grammars.lowering_program"


def descendants(pid: int) -> dict[int, str]:
    """The command lines of all processes below one."""
    found: dict[int, str] = {}
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            found |= descendants(child)
    return found


def readers(pid: int) -> list[int]:
    try:
        return [child for child, line in descendants(pid).items() if PROGRAM in line]
    except OSError:  # one ended meanwhile
        return []


def wait_for_reader(pid: int) -> int:
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        if found := readers(pid):
            return found[0]
        time.sleep(0.05)
    raise AssertionError("nothing reads constraints")


def test_what_the_first_grammar_needs_is_made_while_nothing_is_wanted_and_ends_with_the_server(tmp_path: Path) -> None:
    with serving("scripted", log=tmp_path / "log") as server:
        reader = wait_for_reader(server.pid)
        body = {"messages": [{"role": "user", "content": "Hi."}], "json_schema": {"enum": ["a"]}}
        reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, trust_env=False, timeout=BOUND_S)
        assert reply.json()["choices"][0]["message"]["content"] == '"a"'
        assert readers(server.pid) == [reader]
    deadline = time.monotonic() + BOUND_S
    while Path(f"/proc/{reader}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
