"""Writes to stdout, at once and as UTF-8; a reader that has gone away ends the program quietly."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TextIO, cast

import typer

from stoker.errors import ResourceExhausted


def write_answer(pieces: Iterable[str]) -> None:
    """Writes each piece as it comes, and a newline behind the last one if the answer has none. Raises as `write`."""
    last = ""
    for piece in pieces:
        write(piece)
        last = piece
    if not last.endswith("\n"):
        write("\n")


def write(text: str) -> None:
    """Text as UTF-8, whatever the terminal's locale is called; bytes of a path that are none as they are.

    Raises:
        typer.Exit: nobody reads stdout any more, as in `| head -1`.
        ResourceExhausted: stdout is closed, or its disk is full.
    """
    stdout = cast("TextIO | None", sys.stdout)
    if stdout is None:
        raise ResourceExhausted("cannot write to standard output: it is closed")
    try:
        stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        stdout.buffer.flush()
    except BrokenPipeError:
        _forget_stdout()
        raise typer.Exit from None
    except OSError as error:
        _forget_stdout()
        raise ResourceExhausted(f"cannot write to standard output: {error.strerror}") from error


def _forget_stdout() -> None:
    """Python would flush stdout once more at its exit and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
