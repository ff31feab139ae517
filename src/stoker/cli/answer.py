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
        typer.Exit: the reader of stdout is gone, as in `| head -1`.
        ResourceExhausted: stdout is closed, or its disk is full.
    """
    stdout = cast("TextIO | None", sys.stdout)
    if stdout is None:
        raise _refused("it is closed")
    try:
        stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        stdout.buffer.flush()
    except BrokenPipeError:
        _forget_stdout()
        raise typer.Exit from None
    except OSError as error:
        _forget_stdout()
        raise _refused(error.strerror) from error


def flush() -> None:
    """Writes what others printed and waits in the stream, such as a help page, unless the reader of stdout is gone.

    Raises:
        ResourceExhausted: the disk is full.
    """
    stdout = cast("TextIO | None", sys.stdout)
    try:
        if stdout is not None:
            stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
    except OSError as error:
        _forget_stdout()
        raise _refused(error.strerror) from error


def _refused(why: str | None) -> ResourceExhausted:
    return ResourceExhausted(f"cannot write to standard output: {why}")


def _forget_stdout() -> None:
    """Python would flush stdout once more at its exit and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
