"""Debian's Chromium, driven by Playwright, and servers for its page: the real one on the scripted backend."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.npm import npm_package

CHROMIUM = shutil.which("chromium") or ""
WAIT_MS = 40_000
POEM = (
    "Some **bold** words, $a^2$ for $5 or $6.\n\n$$\\int_0^1 x\\,dx$$\n\n```python\nprint(1)\n```\n\n"
    "![a](https://evil.example/?q=1)<img src=x onerror=alert(1)>"
)
SCRIPT = [
    POEM,
    {"when": "at length", "text": "word " * 6000, "token_ms": 10},
    {"when": "a while", "text": "some " * 50},
    {"when": "in Arabic", "text": "مرحبا بالعالم"},
]
AXE = "axe-core@4.14.1", "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745"

LONG = pytest.mark.skipif("STOKER_TEST_BROWSER" not in os.environ, reason="the longer half: make test-browser")
NEEDS_BROWSER = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed: apt-get install chromium"),
]


@contextmanager
def serving(folder: Path, *options: str, port: int = 0, is_killed: bool = False) -> Generator[str]:
    """The base URL of a server that plays the script; at the end it is stopped, or killed with its streams."""
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    command = [sys.executable, "-m", "stoker", "serve", "scripted", "--script", str(script), "--port", str(port)]
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9"}  # no model is downloaded from anywhere
    with subprocess.Popen(
        [*command, "--ctx-size", "65536", *options], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stderr is not None
            yield process.stderr.readline().split()[-1]
        finally:
            process.kill() if is_killed else process.terminate()
            process.wait(60)


def say(page: Any, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("textbox", name="Message").press("Enter")


def take_in(page: Any, chats: list[Any]) -> None:
    """Imports conversations, of which the first is shown then."""
    if not page.get_by_role("navigation", name="Chats").is_visible():
        page.get_by_role("button", name="Chats", exact=True).click()
    content = json.dumps({"stoker": 1, "chats": chats}).encode()
    picker = page.get_by_label("Import chats")
    picker.set_input_files({"name": "chats.json", "mimeType": "application/json", "buffer": content})
    page.get_by_text("imported.").wait_for()
    page.keyboard.press("Control+b")  # on a phone the list covers the conversation


def answered(page: Any) -> None:
    """Waits until the last answer is complete."""
    page.get_by_role("log").get_by_role("button", name="Regenerate").wait_for()


def long_chat(num_messages: int, text: str) -> dict[str, Any]:
    """A conversation to `take_in`: messages `n0`, `n1`, … below each other, each with its number in `text`."""
    nodes = {
        f"n{at}": {"id": f"n{at}", "parent": f"n{at - 1}" if at else "", "role": "user", "content": text.format(at)}
        for at in range(num_messages)
    }
    return {"title": "Long", "updated": 1, "nodes": nodes, "leaf": f"n{num_messages - 1}"}


def opened_tokens(page: Any) -> tuple[Any, Any]:
    """The dialog about the tokens of the last answer, and its tokens."""
    page.get_by_role("button", name="Tokens").click()
    dialog = page.get_by_role("dialog", name="Tokens")
    tokens = dialog.locator("button.token")
    tokens.first.wait_for()
    return dialog, tokens


def axe_source() -> str:
    """The script of axe-core; skips where it is out of reach."""
    with tarfile.open(npm_package(*AXE)) as files:
        member = files.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


def until(page: Any, condition: str) -> None:
    """Waits for a condition in JavaScript; the page's own policy forbids what `wait_for_function` does."""
    for _ in range(600):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never became true: {condition}")
