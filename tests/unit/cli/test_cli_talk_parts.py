"""The parts of a conversation by themselves: room in the context, blocks of Markdown, and the keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from stoker.cli.talk import keyboard
from stoker.cli.talk.screen import blocks, show_answer
from stoker.cli.talk.turns import TalkFile, Turns


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conversation is typed."""
    monkeypatch.setattr(keyboard, "is_terminal", lambda: True)


def turns(*sizes: int, num_tokens: int) -> Turns:
    """Turns whose questions have so many letters, and whose answers have none."""
    made = Turns()
    for size in sizes:
        made.add("x" * size, [{"role": "assistant", "content": ""}], num_tokens)
    return made


def test_room_is_made_by_the_oldest_turns() -> None:
    full = turns(100, 200, 100, num_tokens=400)
    assert full.make_room("x" * 10, context_size=1000) == 0
    assert full.make_room("x" * 10, context_size=400) == 1
    assert (len(full), full.num_tokens) == (2, 300)
    assert full.make_room("x" * 10, context_size=10) == 2
    assert full.messages == []


def test_a_system_prompt_is_never_dropped() -> None:
    made = turns(100, num_tokens=100)
    made.system = "Be kind."
    made.make_room("x" * 1000, context_size=10)
    assert made.with_question("Hi") == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
    ]


def test_files_belong_to_the_next_question_and_come_back_with_it() -> None:
    made = Turns()
    files = [TalkFile("image", "/a.png"), TalkFile("audio", "/b.wav"), TalkFile("file", "/c.pdf")]
    made.files = list(files)
    content = made.with_question("What are they?")[-1]["content"]
    assert content == [
        {"type": "image", "image": "/a.png"},
        {"type": "audio", "audio": "/b.wav"},
        {"type": "file", "file": "/c.pdf"},
        {"type": "text", "text": "What are they?"},
    ]
    made.add("What are they?", [{"role": "assistant", "content": "Cats."}], 50)
    assert (made.files, made.messages[0]["content"]) == ([], content)
    assert Turns.restored(made.saved()).messages == made.messages
    assert made.undo() == "What are they?"
    assert made.files == files
    made.clear()
    assert made.files == []


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("one", ["one"]),
        ("one\n\ntwo\nstill", ["one", "two\nstill"]),
        ("\n\none\n\n\n\ntwo", ["one", "two"]),
        ("a\n\n```py\nx\n\ny\n```\n\nb", ["a", "```py\nx\n\ny\n```", "b"]),
        ("```\nopen\n\nfence", ["```\nopen\n\nfence"]),
        ("", []),
    ],
)
def test_text_is_cut_where_a_block_ends_however_it_comes(text: str, complete: list[str]) -> None:
    for size in (1, 3, 1000):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert [block.strip("\n") for block, is_complete in blocks(pieces) if is_complete] == complete


def test_markdown_is_rendered(capsys: pytest.CaptureFixture[str]) -> None:
    show_answer(["**bo", "ld**\n\n- it", "em"], is_markdown=True)
    shown = capsys.readouterr().out
    assert "bold" in shown
    assert "**" not in shown
    assert "• item" in shown


def test_what_came_before_an_interrupt_stays_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> Iterator[str]:
        yield "as far as it"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        show_answer(interrupted(), is_markdown=True)
    assert "as far as it" in capsys.readouterr().out


def test_text_is_shown_as_it_is(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    show_answer(["**bo", "ld**"], is_markdown=False)
    assert capsysbinary.readouterr().out == b"**bold**\n"


def typed(keys: str, *, keeps_history: bool = False) -> list[str | None]:
    """The messages that these keys make, with a keyboard that completes `/tokens`."""
    with create_pipe_input() as source, create_app_session(input=source, output=DummyOutput()):
        source.send_text(keys)
        keys_read = keyboard.Keyboard(lambda: ["/tokens"], keeps_history=keeps_history)
        return list(iter(keys_read.next_message, None))


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    ("keys", "messages"),
    [
        ("one\rtwo\r\x04", ["one", "two"]),
        ("one\x1b\rtwo\r\x04", ["one\ntwo"]),
        ('"""one\rtwo"""\r\x04', ["one\ntwo"]),
        ("half\x03whole\r\x04", ["whole"]),
    ],
)
def test_keys_make_messages(keys: str, messages: list[str]) -> None:
    assert typed(keys) == messages


def test_commands_are_completed() -> None:
    completions = keyboard.completer(lambda: ["/tokens", "/help"]).get_completions(Document("/to"), CompleteEvent())
    assert [completion.text for completion in completions] == ["/tokens"]


@pytest.mark.usefixtures("terminal")
def test_what_was_typed_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path))
    assert typed("secret\r\x04", keeps_history=True) == ["secret"]
    assert typed("\x1b[A\r\x04", keeps_history=True) == ["secret"]
    assert (tmp_path / "chat" / "history").stat().st_mode & 0o777 == 0o600
    assert typed("other\r\x04") == ["other"]
    assert "other" not in (tmp_path / "chat" / "history").read_text()


@pytest.mark.usefixtures("terminal")
def test_a_history_that_cannot_be_written_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("STOKER_STATE_DIR", str(tmp_path / "file"))
    assert typed("one\r\x04", keeps_history=True) == ["one"]
    assert "cannot be saved" in capsys.readouterr().err
