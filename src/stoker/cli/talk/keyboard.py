"""Reads the user's messages: typed with an input history and keys for several lines, or read from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO, cast

from stoker.cli.later import prompt_toolkit
from stoker.cli.report import say
from stoker.cli.talk.saved import history_file
from stoker.cli.talk.screen import is_screen
from stoker.errors import InvalidInput

_BLOCK = '"""'
_PROMPT, _MORE = "> ", ". "


class Keyboard:
    """Reads messages from standard input.

    Args:
        words: returns the words that the Tab key completes.
        keeps_history: whether typed messages are stored for the next session.
    """

    def __init__(self, words: Callable[[], Sequence[str]], *, keeps_history: bool = True) -> None:
        self._ask = _asking(words, keeps_history=keeps_history)

    def next_message(self) -> str | None:
        """The next message, stripped: a line, or several lines between triple quotes. None at the end of the input.

        Raises:
            InvalidInput: the input is not UTF-8.
        """
        line = self._line(_PROMPT)
        if line is None or not line.startswith(_BLOCK):
            return line
        parts = [line.removeprefix(_BLOCK)]
        while not parts[-1].rstrip().endswith(_BLOCK):
            more = self._line(_MORE)
            if more is None:
                break
            parts.append(more)
        return "\n".join(parts).rstrip().removesuffix(_BLOCK).strip()

    def _line(self, prompt: str) -> str | None:
        while True:
            try:
                return self._ask(prompt).strip()
            except KeyboardInterrupt:
                say("(Ctrl-D or /exit leaves)")
            except EOFError:
                return None
            except UnicodeDecodeError as error:
                message = f"standard input is not valid UTF-8: {error.reason}"
                raise InvalidInput(message, parameter="prompt") from error


def is_terminal() -> bool:
    """Whether the conversation is typed and shown on a terminal that can move its cursor."""
    stdin = cast("TextIO | None", sys.stdin)
    return stdin is not None and stdin.isatty() and is_screen()


def _asking(words: Callable[[], Sequence[str]], *, keeps_history: bool) -> Callable[[str], str]:
    return _typed(words, keeps_history=keeps_history) if is_terminal() else read_line


def read_line(prompt: str) -> str:
    """Reads one line of stdin. On a terminal, the prompt is shown on stderr, because stdout is for answers.

    Raises:
        EOFError: there are no more lines.
    """
    stdin = cast("TextIO | None", sys.stdin)
    if stdin is not None and stdin.isatty():
        print(prompt, end="", file=sys.stderr, flush=True)
    line = stdin.readline() if stdin is not None else ""
    if not line:
        raise EOFError
    return line


def _typed(words: Callable[[], Sequence[str]], *, keeps_history: bool) -> Callable[[str], str]:
    session: prompt_toolkit.PromptSession[str] = prompt_toolkit.PromptSession(
        history=_file_history() if keeps_history else prompt_toolkit.history.InMemoryHistory(),
        completer=completer(words),
        complete_while_typing=False,
        key_bindings=_keys(),
        multiline=True,
        prompt_continuation=_MORE,
    )
    return session.prompt


def completer(words: Callable[[], Sequence[str]]) -> prompt_toolkit.completion.Completer:
    """A completer for lines that begin like one of the words."""
    return prompt_toolkit.completion.WordCompleter(lambda: list(words()), sentence=True)


def _file_history() -> prompt_toolkit.history.History:
    try:
        return prompt_toolkit.history.FileHistory(str(history_file()))
    except OSError as error:
        say(f"note: the input history cannot be saved: {error.strerror}")
        return prompt_toolkit.history.InMemoryHistory()


def _keys() -> prompt_toolkit.key_binding.KeyBindings:
    """Enter sends, Alt-Enter begins another line."""
    keys = prompt_toolkit.key_binding.KeyBindings()
    keys.add("enter")(_send)
    keys.add("escape", "enter")(_break_line)
    return keys


def _send(event: Any) -> None:
    event.current_buffer.validate_and_handle()


def _break_line(event: Any) -> None:
    event.current_buffer.insert_text("\n")
