"""The progress of a long prompt is shown on a terminal, until the answer begins."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.cli import prompt_progress
from stoker.cli.prompt_progress import after_prompt
from tests.waiting import wait_for


def terminal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is written to stderr from now on, which becomes a terminal."""
    pieces: list[str] = []
    monkeypatch.setattr(prompt_progress, "_EVERY_S", 0.001)
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: True, write=pieces.append, flush=lambda: None))
    monkeypatch.setenv("TERM", "xterm")
    return pieces


def answer_after(written: list[str], text: str) -> Iterator[str]:
    wait_for(lambda: "".join(written), lambda shown: text in shown)
    yield "first"
    yield "second"


def test_line_is_shown_until_the_first_part_and_then_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    written = terminal(monkeypatch)
    stream: Any = SimpleNamespace(prompt_progress=(256, 6040))
    parts = after_prompt(stream, answer_after(written, "reading the prompt: 256 of 6040 tokens"))
    assert next(parts) == "first"
    shown = len(written)
    assert "".join(written).endswith("tokens\r\x1b[K")
    assert list(parts) == ["second"]
    assert len(written) == shown


def test_line_is_erased_if_the_answer_is_stopped_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    written = terminal(monkeypatch)

    def stopped() -> Iterator[str]:
        wait_for(lambda: "".join(written), lambda shown: "tokens" in shown)
        raise KeyboardInterrupt
        yield ""

    stream: Any = SimpleNamespace(prompt_progress=(1, 2))
    with pytest.raises(KeyboardInterrupt):
        list(after_prompt(stream, stopped()))
    assert "".join(written).endswith("\r\x1b[K")


def test_line_fits_into_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    written = terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "20")
    stream: Any = SimpleNamespace(prompt_progress=(256, 6040))
    assert list(after_prompt(stream, answer_after(written, "reading the prompt:"))) == ["first", "second"]
    assert {len(row) for row in "".join(written).split("\r\x1b[K")} == {0, 19}


def test_nothing_is_shown_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    written = terminal(monkeypatch)

    def names_of_threads() -> Iterator[str]:
        yield from [thread.name for thread in threading.enumerate()]

    stream: Any = SimpleNamespace(prompt_progress=None)
    assert "prompt progress" in list(after_prompt(stream, names_of_threads()))
    monkeypatch.setenv("TERM", "dumb")
    assert "prompt progress" not in list(after_prompt(stream, names_of_threads()))
    assert written == [], "nor before the first report"
