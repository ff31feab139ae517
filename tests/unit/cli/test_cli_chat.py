"""`stoker chat` with lines from a pipe; the keyboard is tested end to end."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stoker.chat.answers import Part
from stoker.cli.talk import keyboard
from stoker.errors import ModelFileNotFound
from stoker.llm import LLM, TextStream
from tests.unit.cli.conftest import Stoker, Terminal

REPLY = "Fine, thanks."


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The messages of every question that reaches a model."""
    seen: list[Any] = []
    original = LLM.stream_chat

    def stream_chat(self: LLM, messages: Any, *args: Any, **kwargs: Any) -> TextStream:
        seen.append(messages)
        return original(self, messages, *args, **kwargs)

    monkeypatch.setattr(LLM, "stream_chat", stream_chat)
    return seen


def test_each_line_gets_an_answer(stoker: Stoker) -> None:
    done = stoker("chat", REPLY, stdin=b"How are you?\n\nReally?\n")
    assert (done.code, done.out) == (0, f"{REPLY}\n{REPLY}\n")
    assert "Ctrl-C stops the answer" in done.err


@pytest.mark.parametrize("leave", [b"/exit", b"/quit", b"/bye"])
def test_exit_leaves(stoker: Stoker, leave: bytes) -> None:
    done = stoker("chat", REPLY, stdin=b"One\n" + leave + b"\nTwo\n")
    assert (done.code, done.out) == (0, f"{REPLY}\n")


@pytest.mark.parametrize("asked", [b"/help", b"/?"])
def test_help_is_no_question_for_the_model(stoker: Stoker, asked: bytes) -> None:
    done = stoker("chat", REPLY, stdin=asked + b"\n")
    assert (done.code, done.out) == (0, "")
    assert "/clear                      start over" in done.err


def test_a_message_that_cannot_fit_is_refused_and_the_talk_goes_on(stoker: Stoker) -> None:
    stdin = b"Hi\n" + b"x" * 600 + b"\n/clear\nHi\n"
    done = stoker("chat", REPLY, "--max-tokens", "20", stdin=stdin)
    assert (done.code, done.out) == (0, f"{REPLY}\n{REPLY}\n")
    assert "maximum context length" in done.err
    assert "(message not sent; /clear starts over)" in done.err
    assert "(started over)" in done.err


def test_a_message_that_cannot_fit_leaves_the_conversation_as_it_was(stoker: Stoker) -> None:
    done = stoker("chat", REPLY, "--max-tokens", "20", stdin=b"Hi\nThere\n" + b"x" * 600 + b"\n/tokens\n")
    assert "(message not sent; /clear starts over)" in done.err
    assert "tokens, in 2 turns\n" in done.err


def test_an_answer_that_the_context_cuts_off_is_told(stoker: Stoker) -> None:
    done = stoker("chat", "x" * 600, "--max-tokens", "500", stdin=b"Hi\n")
    assert "(the answer was cut off: the context of 512 tokens is full)" in done.err
    done = stoker("chat", "x" * 600, "--max-tokens", "20", stdin=b"Hi\n")
    assert "cut off" not in done.err
    done = stoker("chat", "x" * 600, stdin=b"Hi\n")
    said = "(the answer was cut off after 384 tokens, the default length: /set max_tokens N sets another one, -1 none)"
    assert said in done.err


def test_the_oldest_turns_leave_when_the_context_is_full(stoker: Stoker) -> None:
    lines = b"Hi there, you\n" * 14
    done = stoker("chat", REPLY, stdin=lines)
    assert (done.code, done.out) == (0, f"{REPLY}\n" * 14)
    assert "the oldest turns are dropped when all are" in done.err
    assert "tokens is full: the oldest turn was dropped)" in done.err
    assert "was dropped" not in stoker("chat", REPLY, stdin=lines.replace(b"\n", b"\n/clear\n")).err


def test_a_message_of_several_lines_is_one_message(stoker: Stoker, asked: list[Any]) -> None:
    stoker("chat", REPLY, stdin=b'"""one\n\ntwo"""\n"""three"""\n"""open\n')
    assert [messages[-1]["content"] for messages in asked] == ["one\n\ntwo", "three", "open"]


def test_a_line_with_a_slash_is_text_where_it_is_no_command(stoker: Stoker, asked: list[Any]) -> None:
    done = stoker("chat", REPLY, stdin=b"//help\n/etc/passwd is a file\n/nonsense\n")
    assert [messages[-1]["content"] for messages in asked] == ["/help", "/etc/passwd is a file"]
    assert "error: unknown command /nonsense: /help lists the commands" in done.err


def test_retry_and_undo_take_the_last_turn_back(stoker: Stoker, asked: list[Any]) -> None:
    done = stoker("chat", REPLY, stdin=b"/retry\n/undo\nOne\nTwo\n/retry\n/undo\nThree\n")
    assert [[m["content"] for m in messages if m["role"] == "user"] for messages in asked] == [
        *(["One"], ["One", "Two"], ["One", "Two"], ["One", "Three"])
    ]
    assert "error: there is no message yet" in done.err
    assert "(removed: Two)" in done.err


def test_an_image_is_refused_by_a_model_that_takes_none(stoker: Stoker, asked: list[Any]) -> None:
    done = stoker("chat", REPLY, stdin=b"/image /nowhere.png\n/image\nHi\n")
    assert "error: this model takes no images; serve it with --mmproj FILE" in done.err
    assert "images of the next message: none" in done.err
    assert [messages[-1]["content"] for messages in asked] == ["Hi"]


def test_the_system_prompt_can_be_changed(stoker: Stoker, asked: list[Any]) -> None:
    done = stoker("chat", REPLY, "-s", "One", stdin=b"Hi\n/system Two\n/system\nHi\n/system -\nHi\n")
    assert [messages[0]["content"] for messages in asked] == ["One", "Two", "Hi"]
    assert done.err.count("system prompt: Two") == 2
    assert "system prompt: none" in done.err


def test_settings_hold_from_then_on(stoker: Stoker) -> None:
    lines = b"/set max_tokens 3\nHi\n/set num_predict -\n/set stop th\n/set stats on\nHi\n/set\n"
    done = stoker("chat", REPLY, stdin=lines)
    assert done.out == "Fin\nFine, \n"
    assert "(prompt: " in done.err
    assert "  stop th\n  markdown off\n  stats on" in done.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/set warmth 3", "unknown setting 'warmth': settings: markdown, stats, temperature"),
        ("/set temperature hot", "temperature must be a number, not 'hot'"),
        ("/set temprature 0", "unknown setting 'temprature': did you mean temperature?"),
        ("/set seed 1.5", "seed must be a whole number, not '1.5'"),
        ("/set temperature -5", "`temperature` must be between"),
        ("/set stats maybe", "must be on or off, not 'maybe'"),
        ("/load nothing", "no conversation was saved as 'nothing'; saved: none"),
        ("/save a/b", "'a/b' cannot be the name of a conversation"),
        ("/load", "there is no conversation to continue yet"),
    ],
)
def test_what_a_command_cannot_do_is_told_and_the_talk_goes_on(stoker: Stoker, line: str, said: str) -> None:
    done = stoker("chat", REPLY, stdin=f"{line}\nHi\n".encode())
    assert (done.code, done.out) == (0, f"{REPLY}\n")
    assert f"error: {said}" in done.err


def test_a_conversation_is_saved_and_loaded(stoker: Stoker, asked: list[Any], tmp_path: Path) -> None:
    done = stoker("chat", REPLY, "-s", "Be brief.", stdin=b"One\n/tokens\n/save first\n")
    assert f"saved: {tmp_path}/state/chat/first.json" in done.err
    assert re.search(r"[1-9]\d* of 512 tokens, in 1 turn\n", done.err)
    assert "(1 turn; the conversation is resumed)" in stoker("chat", REPLY, stdin=b"/load first\nTwo\n").err
    assert [message["content"] for message in asked[-1]] == ["Be brief.", "One", REPLY, "Two"]


def test_settings_can_be_set_in_ollamas_words(stoker: Stoker, asked: list[Any]) -> None:
    lines = b"/set parameter num_predict 3\n/set verbose\n/set system Be brief.\nHi\n/set quiet\n/show\n"
    done = stoker("chat", REPLY, stdin=lines)
    assert done.out == "Fin\n"
    assert [message["content"] for message in asked[-1]] == ["Be brief.", "Hi"]
    assert done.err.count("(prompt: ") == 1
    assert done.err.count("  max_tokens 3") == 2
    assert f"model: {REPLY}, context size 512\nsystem prompt: Be brief.\n" in done.err


@pytest.mark.parametrize("line", [b"/HELP", b"/Help"])
def test_commands_may_be_in_capitals(stoker: Stoker, line: bytes) -> None:
    assert "/clear                      start over" in stoker("chat", REPLY, stdin=line + b"\n").err


@pytest.mark.parametrize("line", [b"/sytem Be brief.", b"/system-prompt Be brief."])
def test_a_command_with_a_slip_is_no_text(stoker: Stoker, asked: list[Any], line: bytes) -> None:
    assert "did you mean /system?" in stoker("chat", REPLY, stdin=line + b"\n").err
    assert asked == []


def test_a_retry_that_is_stopped_keeps_the_answer(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = LLM.stream_chat
    answers = iter([answer, None])

    def stream_chat(self: LLM, *args: Any, **kwargs: Any) -> TextStream:
        how = next(answers)
        if how is None:
            raise KeyboardInterrupt
        return how(self, *args, **kwargs)

    monkeypatch.setattr(LLM, "stream_chat", stream_chat)
    done = stoker("chat", REPLY, stdin=b"One\n/retry\n/tokens\n/undo\n")
    assert "(stopped before the answer began)" in done.err
    assert "tokens, in 1 turn\n" in done.err
    assert "(removed: One)" in done.err


def test_nothing_is_kept_of_a_pipe(stoker: Stoker) -> None:
    stoker("chat", REPLY, stdin=b"One\n")
    done = stoker("chat", REPLY, "--continue", stdin=b"Two\n")
    assert (done.code, done.out) == (2, "")
    assert "there is no conversation to continue yet" in done.err


def test_the_last_conversation_is_continued(
    stoker: Stoker, asked: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(keyboard, "is_terminal", lambda: True)
    monkeypatch.setattr(keyboard, "_typed", lambda words, keeps_history: keyboard.read_line)
    stoker("chat", REPLY, "--plain", stdin=b"One\n")
    done = stoker("chat", REPLY, "--plain", "--continue", "--private", stdin=b"Two\n")
    assert "(continued after 1 turn)" in done.err
    assert [message["content"] for message in asked[-1]] == ["One", REPLY, "Two"]
    kept = tmp_path / "state" / "chat" / "last.json"
    assert "Two" not in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_file_that_holds_no_conversation_is_named(stoker: Stoker, tmp_path: Path) -> None:
    folder = tmp_path / "state" / "chat"
    folder.mkdir(parents=True)
    (folder / "odd.json").write_text('{"system": "", "turns": [[3]], "num_tokens": 0}')
    assert "odd.json is not a saved conversation" in stoker("chat", REPLY, stdin=b"/load odd\n").err


def test_another_model_goes_on_with_the_conversation(stoker: Stoker, asked: list[Any]) -> None:
    done = stoker("chat", REPLY, stdin=b"One\n/model other\nTwo\n")
    assert done.out == f"{REPLY}\nother\n"
    assert [message["content"] for message in asked[-1]] == ["One", REPLY, "Two"]


def test_a_model_that_cannot_be_loaded_changes_nothing(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    original = LLM.__init__

    def refuse(self: LLM, model: Any, **more: Any) -> None:
        if model.model == "missing":
            raise ModelFileNotFound("no model 'missing'")
        original(self, model, **more)

    monkeypatch.setattr(LLM, "__init__", refuse)
    done = stoker("chat", REPLY, stdin=b"/model missing\nHi\n")
    assert (done.code, done.out) == (0, f"{REPLY}\n")
    assert "error: no model 'missing'" in done.err


def test_an_interrupt_stops_the_answer_and_not_the_program(stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    original, num_calls = TextStream._next_parts, 0

    def interrupted(self: TextStream) -> Sequence[Part] | None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            raise KeyboardInterrupt
        return original(self)

    monkeypatch.setattr(TextStream, "_next_parts", interrupted)
    done = stoker("chat", REPLY, stdin=b"One\nTwo\n")
    assert (done.code, done.out) == (0, f"{REPLY}\n")
    assert "(stopped)" in done.err


def test_lines_that_are_no_utf8_are_refused(stoker: Stoker) -> None:
    done = stoker("chat", REPLY, stdin=b"ab\xff\n")
    assert done.code == 2
    assert "not valid UTF-8" in done.err


def test_a_question_may_be_about_a_file(stoker: Stoker, asked: list[Any], tmp_path: Path) -> None:
    note = tmp_path / "note.txt"
    note.write_text("Cats.")
    lines = f"/file {note}\nWhat is it?\n/file {note}\n/file -\n/file {tmp_path}/none\nAnd now?\n"
    done = stoker("chat", REPLY, stdin=lines.encode())
    assert (done.code, done.out) == (0, f"{REPLY}\n{REPLY}\n")
    first = [{"type": "file", "file": str(note)}, {"type": "text", "text": "What is it?"}]
    assert [messages[-1]["content"] for messages in asked] == [first, "And now?"]
    assert f"there is no file {tmp_path}/none" in done.err


def test_the_prompt_stays_out_of_a_stdout_that_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"Hi\n"), encoding="utf-8"))
    assert keyboard.read_line("> ") == "Hi\n"
    assert capsys.readouterr() == ("", "> ")
    with pytest.raises(EOFError):
        keyboard.read_line("> ")


def test_a_closed_stdin_is_the_end_of_the_talk(stoker: Stoker) -> None:
    assert stoker("chat", REPLY, stdin=None).code == 0
