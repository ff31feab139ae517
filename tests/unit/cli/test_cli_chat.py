"""`stoker chat` with lines from a pipe; the keyboard is tested end to end."""

from __future__ import annotations

import io
import sys

import pytest

from stoker.cli.chat import _ask
from stoker.llm import TextStream
from tests.unit.cli.conftest import Stoker

REPLY = "Fine, thanks."


def test_each_line_gets_an_answer(stoker: Stoker) -> None:
    done = stoker("chat", REPLY, stdin=b"How are you?\n\nReally?\n")
    assert (done.code, done.out) == (0, f"{REPLY}\n{REPLY}\n")
    assert "Ctrl-C stops the answer" in done.err


@pytest.mark.parametrize("leave", [b"/exit", b"/quit"])
def test_exit_leaves(stoker: Stoker, leave: bytes) -> None:
    done = stoker("chat", REPLY, stdin=b"One\n" + leave + b"\nTwo\n")
    assert (done.code, done.out) == (0, f"{REPLY}\n")


@pytest.mark.parametrize("asked", [b"/help", b"/?"])
def test_help_is_no_question_for_the_model(stoker: Stoker, asked: bytes) -> None:
    done = stoker("chat", REPLY, stdin=asked + b"\n")
    assert (done.code, done.out) == (0, "")
    assert done.err.count("/clear starts over") == 2


def test_a_turn_that_does_not_fit_is_refused_and_the_talk_goes_on(stoker: Stoker) -> None:
    stdin = b"Hi\n" + b"x" * 600 + b"\n/clear\nHi\n"
    done = stoker("chat", REPLY, "--max-tokens", "20", stdin=stdin)
    assert (done.code, done.out) == (0, f"{REPLY}\n{REPLY}\n")
    assert "maximum context length" in done.err
    assert "a new conversation" in done.err


def test_what_was_said_before_is_part_of_the_prompt(stoker: Stoker) -> None:
    lines = b"Hi there, you\n" * 14
    assert "maximum context length" in stoker("chat", REPLY, stdin=lines).err
    assert "maximum context length" not in stoker("chat", REPLY, stdin=lines.replace(b"\n", b"\n/clear\n")).err


def test_an_interrupt_stops_the_answer_and_not_the_program(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    original, num_calls = TextStream.__next__, 0

    def interrupted(self: TextStream) -> str:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            raise KeyboardInterrupt
        return original(self)

    monkeypatch.setattr(TextStream, "__next__", interrupted)
    done = stoker("chat", REPLY, stdin=b"One\nTwo\n")
    assert (done.code, done.out) == (0, f"{REPLY}\n")
    assert "(stopped)" in done.err


def test_lines_that_are_no_utf8_are_refused(stoker: Stoker) -> None:
    done = stoker("chat", REPLY, stdin=b"ab\xff\n")
    assert done.code == 2
    assert "not valid UTF-8" in done.err


def test_the_prompt_stays_out_of_a_stdout_that_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hi\n"))
    assert _ask(is_interactive=True) == "Hi\n"
    assert capsys.readouterr() == ("", "> ")
    with pytest.raises(EOFError):
        _ask(is_interactive=True)


def test_a_closed_stdin_is_the_end_of_the_talk(stoker: Stoker) -> None:
    assert stoker("chat", REPLY, stdin=None).code == 0
