"""Numbered messages on the pipes between a server and its programs, and what a program does that answers them."""

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
"""Streams come first."""

OrderT = TypeVar("OrderT")


class Describe(msgspec.Struct, frozen=True, tag=True):
    """Asks for facts about the model. This first order loads it."""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The model, a file or an order cannot be used."""

    message: str
    needs_pixels: bool = False
    """Pixels were left out that are not there any more."""


def framed(number: int, message: msgspec.Struct) -> bytes:
    """A message as it stands on a pipe."""
    data = msgspec.msgpack.encode(message)
    return HEADER.pack(len(data), number) + data


def read_orders(
    decoder: msgspec.msgpack.Decoder[OrderT], read: Callable[[int], bytes] = sys.stdin.buffer.read
) -> Iterator[tuple[int, OrderT]]:
    """The numbers of orders and the orders, until there will be no more.

    Args:
        decoder: of orders.
        read: gives the requested number of bytes, or fewer at the end.
    """
    while len(header := read(HEADER.size)) == HEADER.size:
        size, number = HEADER.unpack(header)
        yield number, decoder.decode(read(size))


def begin_program() -> BinaryIO:
    """Makes this process one of low priority, and returns where its replies go: what libraries print goes elsewhere."""
    _go_behind()  # before there are other threads, which inherit it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return replies


def _go_behind() -> None:
    """Lets the engines go first where cores are short.

    Linux shares cores out among sessions before it looks at the niceness of their processes, and each engine has a
    session of its own (`man 7 sched`, "The autogroup feature"). So this process gets one too, whose niceness counts.
    """
    os.nice(_NICE)
    with suppress(OSError):  # it leads a session already
        os.setsid()
    with suppress(OSError), open("/proc/self/autogroup", "w") as autogroup:  # other kernels have none
        autogroup.write(str(_NICE))
