"""The messages between a front and an engine replica: the engine's own protocol, and reports about the replica.

```
front  tell(orders)      ───►  replica     a list of orders; each list is sent when the list before it has arrived
       frames of reports ◄───              all reports since the last frame, for all of the front's requests
```
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stoker.engine.cards import ModelCard
from stoker.engine.protocol import Abort, Accepted, AnswerEvent, Failed, Output, Pause, Resume, Submit
from stoker.engine.question_messages import Embed, QuickQuestion
from stoker.engine.stats import EngineStats


class Ticket(msgspec.Struct, frozen=True):
    """What one front needs to connect to a replica directly, see `direct`. Only Ray carries it."""

    host: str
    port: int
    name: bytes
    """Names the ticket, which may be known."""
    secret: bytes
    """What the front says first, after the name."""
    proof: bytes
    """What the replica answers: no other process knows it."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """The first report of a replica: its model and its node."""

    card: ModelCard
    node: str
    """The address of the replica's node."""
    kv_events: str = ""
    """The endpoint at which the replica publishes KV events; empty = none."""
    ticket: Ticket | None = None
    """How to connect to the replica directly; None = not at all."""


class Beat(msgspec.Struct, frozen=True, tag=True):
    """The heartbeat of a replica, about once a second: its engine's health. It also shows that the connection works."""

    state: str
    num_restarts: int = 0
    last_error: str | None = None
    stats: EngineStats | None = None
    num_others: int = 0
    """Number of requests that other fronts have open at the replica."""
    others_tokens: int = 0
    """Estimate of the tokens that the replica has still to compute for other fronts' requests."""


class Moved(msgspec.Struct, frozen=True, tag=True):
    """The frame with this report is the last one through Ray: the direct connection carries all later ones."""


class Heard(msgspec.Struct, frozen=True, tag=True):
    """Another front has sent a prompt to this replica, which therefore has probably cached the prompt's prefixes."""

    keys: tuple[bytes, ...]
    """Prefix keys of the prompt, see `Beginning`."""
    num_tokens: int
    accepted: Accepted
    """The engine's acceptance of the prompt, with the prompt's KV blocks."""


Report: TypeAlias = Hello | Beat | Moved | Heard | Accepted | Output | Failed | AnswerEvent
Order: TypeAlias = Submit | Abort | Pause | Resume | Embed | QuickQuestion

encode = msgspec.msgpack.Encoder().encode
decode_reports = msgspec.msgpack.Decoder(list[Report]).decode
decode_orders = msgspec.msgpack.Decoder(list[Order]).decode
