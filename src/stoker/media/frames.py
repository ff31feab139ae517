"""Framing of numbered messages on the pipes between a server and its child programs; setup of such a program."""

from __future__ import annotations

import os
import resource
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import BinaryIO, TypeVar

import msgspec

HEADER = struct.Struct("<II")
"""Header of a frame: its length in bytes, and the number of the order, which the reply repeats."""
_NICE = 5
"""Niceness of child programs: generating text has priority over encoding files."""

OrderT = TypeVar("OrderT")


class Describe(msgspec.Struct, frozen=True, tag=True):
    """Asks for the properties of the model. This is the first order, and loads the model."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Reply: the model, the file or the order cannot be used."""

    message: str
    needs_pixels: bool = False
    """The order omitted pixels that the program no longer has; it must be sent again with them."""


def framed(number: int, message: msgspec.Struct) -> bytes:
    """The bytes of a message on a pipe: header and MessagePack."""
    data = msgspec.msgpack.encode(message)
    return HEADER.pack(len(data), number) + data


def read_orders(
    decoder: msgspec.msgpack.Decoder[OrderT], read: Callable[[int], bytes] = sys.stdin.buffer.read
) -> Iterator[tuple[int, OrderT]]:
    """Yields each order with its number, until the pipe is closed.

    Args:
        decoder: decodes orders.
        read: returns the requested number of bytes, or fewer at the end of the pipe.
    """
    while len(header := read(HEADER.size)) == HEADER.size:
        size, number = HEADER.unpack(header)
        yield number, decoder.decode(read(size))


def begin_program() -> BinaryIO:
    """Lowers the priority of this process, and returns the stream for replies. Prints of libraries go to stderr."""
    _go_behind()  # before other threads start, since they inherit the priority
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return replies


def _go_behind() -> None:
    """Gives engines priority over this process when CPU cores are scarce.

    Linux divides CPU time among sessions before it considers the niceness of processes, and each engine has its own
    session (`man 7 sched`, "The autogroup feature"). So this process gets its own session with a niceness, too.
    """
    os.nice(_NICE)
    with suppress(OSError):  # the process leads a session already
        os.setsid()
    with suppress(OSError), open("/proc/self/autogroup", "w") as autogroup:  # the kernel may not have this file
        autogroup.write(str(_NICE))
