"""Writes an answer to stdout while it comes; a reader that has gone away ends the program quietly."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import typer


def write_answer(pieces: Iterable[str]) -> None:
    """Writes each piece at once, and a newline behind the last one if the answer has none.

    Raises:
        typer.Exit: nobody reads stdout any more, as in `| head -1`.
    """
    last = ""
    try:
        for piece in pieces:
            write(piece)
            last = piece
        if not last.endswith("\n"):
            write("\n")
    except BrokenPipeError:
        _forget_stdout()
        raise typer.Exit from None


def write(text: str) -> None:
    """Text as UTF-8, whatever the terminal's locale is called."""
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def _forget_stdout() -> None:
    """Python would flush stdout once more at its exit and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
