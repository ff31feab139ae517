"""Reads the prompt of a command from an argument, standard input, or both, and checks that it is valid Unicode."""

from __future__ import annotations

import select
import sys
from typing import TextIO, cast

from stoker.cli.report import say
from stoker.errors import InvalidInput

MAX_PROMPT_BYTES = 64 * 2**20
_QUIET_S = 2.0
"""Time without input from a pipe, in seconds, after which a note says why the program looks as if it hung."""


def given_prompt(argument: str | None) -> str | None:
    """The prompt of a command: the argument, standard input, or the argument followed by standard input.

    Args:
        argument: PROMPT; None or `-` stands for standard input alone.

    Returns:
        The prompt. None if there is no argument and standard input is a terminal: the user wants a conversation.

    Raises:
        InvalidInput: there is no prompt, or it is empty, too large, or not valid Unicode.
    """
    stdin = cast("TextIO | None", sys.stdin)
    is_terminal = stdin is not None and stdin.isatty()
    if argument is None and is_terminal:
        return None
    if argument in (None, "-"):
        return read_prompt()
    asked = checked_text(argument, "PROMPT")
    piped = _piped(stdin) if stdin is not None and not is_terminal else ""
    return f"{asked}\n\n{piped}" if piped else asked


def _piped(stdin: TextIO) -> str:
    """The text that is piped in besides the argument; it may be empty."""
    _name_quiet_pipe(stdin)
    return _text_of(stdin)


def _name_quiet_pipe(stdin: TextIO) -> None:
    try:
        is_ready = bool(select.select([stdin], [], [], _QUIET_S)[0])
    except (OSError, ValueError):  # stdin is not a file of the operating system
        return
    if not is_ready:
        say("note: also reading standard input (add </dev/null if there is none)")


def read_prompt() -> str:
    """All of standard input, without the newline that `echo` adds at the end.

    Raises:
        InvalidInput: standard input is a terminal, closed, empty, too large, or not UTF-8.
    """
    stdin = cast("TextIO | None", sys.stdin)
    if stdin is None or stdin.isatty():
        raise InvalidInput("no prompt: give one as PROMPT, or pipe it in", parameter="prompt")
    return checked_text(_text_of(stdin), "standard input")


def _text_of(stdin: TextIO) -> str:
    raw = stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    if len(raw) > MAX_PROMPT_BYTES:
        raise InvalidInput(f"standard input has more than {MAX_PROMPT_BYTES} bytes", parameter="prompt")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"standard input is not valid UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start}",
            parameter="prompt",
        ) from error
    return text.removesuffix("\n").removesuffix("\r")


def checked_text(text: str, where: str) -> str:
    """Returns the text unchanged, if it can be a prompt. `where` names its source in messages.

    Raises:
        InvalidInput: the text is empty, or contains bytes that were not UTF-8.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{where} is not valid UTF-8 at character {error.start}", parameter="prompt") from error
    if not text:
        raise InvalidInput(f"the prompt is empty: {where} has no text", parameter="prompt")
    return text
