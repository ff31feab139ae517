"""Shows an answer while it is streamed: as plain text, or as rendered Markdown on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Self, TextIO, cast

from stoker.cli.answer import write_answer
from stoker.cli.later import rich

_FENCES = ("```", "~~~")


def is_screen() -> bool:
    """Whether standard output is a terminal that can move its cursor."""
    stdout = cast("TextIO | None", sys.stdout)
    can_move = os.environ.get("TERM", "dumb") != "dumb" or sys.platform == "win32"
    return can_move and stdout is not None and stdout.isatty()


def show_answer(pieces: Iterable[str], *, is_markdown: bool) -> None:
    """Writes the pieces to stdout as they arrive. An answer without pieces writes nothing."""
    coming = iter(pieces)
    for first in coming:
        show = _show_markdown if is_markdown else write_answer
        show(chain((first,), coming))


def blocks(pieces: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """Splits Markdown into blocks that can be rendered alone: paragraphs, lists, whole code blocks.

    Yields:
        The current block as far as it has arrived, and whether it is complete.

    >>> list(blocks(["a", "\\n\\nb"]))
    [('a', False), ('a', True), ('b', False), ('b', True)]
    """
    pending = ""
    for piece in pieces:
        pending += piece
        while (end := _end_of_block(pending)) is not None:
            yield pending[:end].rstrip("\n"), True
            pending = pending[end:].lstrip("\n")
        if pending:
            yield pending, False
    if pending:
        yield pending, True


def _end_of_block(text: str) -> int | None:
    """The offset after the first empty line outside of a code block; None if there is no such line yet."""
    fence, offset = "", 0
    for line in text.splitlines(keepends=True):
        offset += len(line)
        word = line.strip()
        if fence:
            fence = "" if word.startswith(fence) else fence
        elif word.startswith(_FENCES):
            fence = word[:3]
        elif not word and line.endswith("\n") and text[: offset - len(line)].strip():
            return offset
    return None


def _show_markdown(pieces: Iterable[str]) -> None:
    with _Blocks() as shown:
        for block, is_complete in blocks(pieces):
            shown.show(block, is_complete=is_complete)


class _Blocks:
    """An answer on the screen: its last block is shown as plain text until it is complete and can be rendered."""

    def __init__(self) -> None:
        self._console = rich.console.Console()
        self._live: rich.live.Live | None = None
        self._pending = ""
        self._has_shown = False

    def show(self, block: str, *, is_complete: bool) -> None:
        if is_complete:
            self._print(block)
            return
        self._pending = block
        if self._live is None:
            self._live = rich.live.Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(rich.text.Text(_tail(block, self._console.height)), refresh=True)

    def _print(self, block: str) -> None:
        if self._live is not None:
            self._live.stop()
        self._live, self._pending = None, ""
        if block:
            if self._has_shown:
                self._console.print()
            self._has_shown = True
            self._console.print(rich.markdown.Markdown(block))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Renders the last block as far as it has arrived, whatever ended the answer."""
        self._print(self._pending)


def _tail(block: str, height: int) -> str:
    """The last lines of an incomplete block, as many as fit on the screen."""
    return "\n".join(block.splitlines()[-max(1, height - 2) :])
