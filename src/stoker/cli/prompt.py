"""Where a prompt comes from: an argument or standard input. Either way it is valid Unicode afterwards."""

from __future__ import annotations

import sys
from typing import TextIO, cast

from stoker.errors import InvalidInput

MAX_PROMPT_BYTES = 64 * 2**20


def read_prompt() -> str:
    """All of standard input, without the newline that `echo` puts behind it.

    Raises:
        InvalidInput: a terminal, closed, empty, too large, or not UTF-8.
    """
    stdin = cast("TextIO | None", sys.stdin)
    if stdin is None or stdin.isatty():
        raise InvalidInput("no prompt: give one as PROMPT, or pipe it in", parameter="prompt")
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
    return checked_text(text.removesuffix("\n").removesuffix("\r"), "standard input")


def checked_text(text: str, where: str) -> str:
    """The text, if it is one.

    Raises:
        InvalidInput: it is empty, or holds bytes that were no UTF-8.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{where} is not valid UTF-8 at character {error.start}", parameter="prompt") from error
    if not text:
        raise InvalidInput(f"the prompt is empty: {where} has no text", parameter="prompt")
    return text
