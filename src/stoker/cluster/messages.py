"""The messages between a front and an engine replica: those of the engine's own protocol, and a word about the replica.

```
front  tell(commands)    ───►  replica     a list of commands; the next list leaves when the last one has arrived
       frames of reports ◄───              whatever has come since the last frame, for all of the front's requests
```
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stoker.engine.cards import ModelCard
from stoker.engine.protocol import Abort, Accepted, AnswerEvent, Failed, Output, Pause, Resume, Submit
from stoker.engine.question_messages import Embed, QuickQuestion
from stoker.engine.stats import EngineStats


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first report of a replica: its model and its node."""

    card: ModelCard
    node: str
    """The address of its node."""
    kv_events: str = ""
    """Where it publishes which blocks of KV it holds; empty = nowhere."""


class Beat(msgspec.Struct, frozen=True, tag=True):
    """The health of a replica's engine, about once a second; also the sign that the connection is alive."""

    state: str
    num_restarts: int = 0
    last_error: str | None = None
    stats: EngineStats | None = None
    num_others: int = 0
    """Number of requests that other fronts have open at the replica."""
    others_tokens: int = 0
    """Tokens that these requests still cost the replica, roughly."""


class Heard(msgspec.Struct, frozen=True, tag=True):
    """Another front has sent this replica a prompt: what begins alike is likely to be cached here."""

    keys: tuple[bytes, ...]
    """See `Beginning`."""
    num_tokens: int
    accepted: Accepted
    """The blocks that the prompt has become, in the engine's words."""


Report: TypeAlias = Hello | Beat | Heard | Accepted | Output | Failed | AnswerEvent
Order: TypeAlias = Submit | Abort | Pause | Resume | Embed | QuickQuestion

encode = msgspec.msgpack.Encoder().encode
decode_reports = msgspec.msgpack.Decoder(list[Report]).decode
decode_orders = msgspec.msgpack.Decoder(list[Order]).decode
