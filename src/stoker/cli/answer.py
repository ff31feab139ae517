"""Writes to stdout, unbuffered and as UTF-8. If the reader is gone (broken pipe), the program ends quietly."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TextIO, cast

import typer

from stoker.errors import ResourceExhausted


def write_answer(pieces: Iterable[str]) -> None:
    """Writes each piece as it arrives, and a newline at the end if the answer has none there. Raises as `write`."""
    last = ""
    for piece in pieces:
        write(piece)
        last = piece
    if not last.endswith("\n"):
        write("\n")


def write(text: str) -> None:
    """Writes text as UTF-8, whatever the locale. Bytes of a path that are not UTF-8 are written unchanged.

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
    """Flushes what other code has printed to stdout, such as a help page. A reader of stdout that is gone is no error.

    Raises:
        ResourceExhausted: stdout cannot be written, for example because its disk is full.
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
    """Redirects stdout to the null device: at its exit, Python flushes stdout again and would report the error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
