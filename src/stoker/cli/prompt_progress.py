"""Shows on a terminal how much of a long prompt is computed, until the answer begins. It does not read the answer."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from stoker.llm import TextStream

T = TypeVar("T")

_EVERY_S = 0.5
_ERASE = "\r\x1b[K"


def after_prompt(stream: TextStream, parts: Iterable[T]) -> Iterator[T]:
    """Yields the same parts. Until the first one arrives, stderr shows the progress of the prompt, if it is a terminal.

    The line `reading the prompt: 2048 of 7037 tokens` appears after half a second, and is erased before the first part.
    """
    has_begun = threading.Event()
    line = threading.Thread(target=_draw, args=(stream, has_begun), name="prompt progress", daemon=True)
    if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        with suppress(RuntimeError):  # no thread can be started
            line.start()
    try:
        for part in parts:
            _end(line, has_begun)
            yield part
    finally:
        _end(line, has_begun)


def _draw(stream: TextStream, has_begun: threading.Event) -> None:
    is_shown = False
    while not has_begun.wait(_EVERY_S):
        if (progress := stream.prompt_progress) is not None:
            computed, total = progress
            text = f"reading the prompt: {computed} of {total} tokens"
            row = text[: shutil.get_terminal_size().columns - 1]  # a line that wraps could not be erased
            print(f"{_ERASE}{row}", end="", file=sys.stderr, flush=True)
            is_shown = True
    if is_shown:
        print(_ERASE, end="", file=sys.stderr, flush=True)


def _end(line: threading.Thread, has_begun: threading.Event) -> None:
    has_begun.set()
    if line.is_alive():
        line.join()
