"""The messages between a server and the process that transcribes. Each is one frame on a pipe."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stoker.core.speech import Segment, SpeechInfo, Wish
from stoker.media.frames import Describe, Refused


class Described(msgspec.Struct, frozen=True, tag=True):
    info: SpeechInfo


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Sends a recording to the process. Its language is detected first if `wish` does not name it."""

    job: int
    samples: bytes
    """Samples of one channel, as 4-byte floats."""
    wish: Wish


class Begun(msgspec.Struct, frozen=True, tag=True):
    language: str
    """Code of the spoken language, such as `en`."""


class Continue(msgspec.Struct, frozen=True, tag=True):
    """Asks for the next segment of a recording."""

    job: int


class Next(msgspec.Struct, frozen=True, tag=True):
    segment: Segment | None
    """The next segment; None = the recording has ended, and the process has freed it."""


class Drop(msgspec.Struct, frozen=True, tag=True):
    """Frees a recording whose remaining segments are no longer needed."""

    job: int


Order: TypeAlias = Describe | Begin | Continue | Drop
Reply: TypeAlias = Described | Begun | Next | Refused

order_decoder = msgspec.msgpack.Decoder(Order)
reply_decoder = msgspec.msgpack.Decoder(Reply)
