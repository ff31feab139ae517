"""The messages between a server and the process that transcribes. Each is one frame on a pipe."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stoker.core.speech import Segment, SpeechInfo, Wish
from stoker.media.frames import Describe, Refused


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


Order: TypeAlias = Describe | Begin | Continue | Drop
Reply: TypeAlias = Described | Begun | Next | Refused

order_decoder = msgspec.msgpack.Decoder(Order)
reply_decoder = msgspec.msgpack.Decoder(Reply)
