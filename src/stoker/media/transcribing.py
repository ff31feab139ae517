"""The messages between a server and the process that transcribes. Each is one frame on a pipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from stoker.core.speech import Segment, SpeechInfo, Wish
from stoker.media.child import HEADER


class Describe(msgspec.Struct, frozen=True, tag=True):
    """Asks for facts about the model. This first order loads it."""


class Described(msgspec.Struct, frozen=True, tag=True):
    info: SpeechInfo


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Begins with a recording. The language is found out first if it is not given."""

    job: int
    samples: bytes
    """One channel, floats of 4 bytes."""
    wish: Wish


class Begun(msgspec.Struct, frozen=True, tag=True):
    language: str
    """Code of the language that is spoken."""


class Continue(msgspec.Struct, frozen=True, tag=True):
    """Asks for the next segment of a recording."""

    job: int


class Next(msgspec.Struct, frozen=True, tag=True):
    segment: Segment | None
    """None: the recording has ended, and the process has forgotten it."""


class Drop(msgspec.Struct, frozen=True, tag=True):
    """The rest of a recording is not wanted any more."""

    job: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The model, or an order, cannot be used."""

    message: str


Order: TypeAlias = Describe | Begin | Continue | Drop
Reply: TypeAlias = Described | Begun | Next | Refused

order_decoder = msgspec.msgpack.Decoder(Order)
reply_decoder = msgspec.msgpack.Decoder(Reply)


def read_order(read: Callable[[int], bytes]) -> tuple[int, Order] | None:
    """The next order and its number; None = there will be no more.

    Args:
        read: gives the requested number of bytes, or fewer at the end.
    """
    header = read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    size, number = HEADER.unpack(header)
    return number, order_decoder.decode(read(size))
