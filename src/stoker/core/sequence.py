"""A request on its way: which entries it has, how many of them are computed, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from stoker.core.batch import Entry
from stoker.core.request import Request


class FinishReason(Enum):
    """Why a sequence ended. The values are those of the wire."""

    STOP = "stop"
    """An end-of-generation token, a stop token or a stop string."""
    LENGTH = "length"
    """`max_tokens` reached, or the context is full."""
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(slots=True, eq=False)
class Sequence:
    """Owned by the scheduler; nobody else changes it. Equal only to itself.

    ```
    entries:  [ prompt ............ | completion ... ]
              [ cached | computed ......... | not yet ]
                         num_computed ^       ^ len(entries)
    ```
    """

    request: Request
    arrival: int = 0
    """Grows with every request: the order in which they came."""
    entries: list[Entry] = field(default_factory=list[Entry])
    slot: int | None = None
    """The native sequence that holds this one's KV while it runs."""
    num_computed: int = 0
    """Entries whose KV is in the slot."""
    num_cached: int = 0
    """Prompt entries that were taken from the cache when it began."""
    has_begun: bool = False
    """Some step has taken entries of it."""
    num_preempted: int = 0
    num_passed_over: int = 0
    """How often a later sequence was admitted first because it could reuse more."""
    num_prefix_waits: int = 0
    """How often it was put off because a running sequence computes a common prefix."""
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.entries = list(self.request.prompt)

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def num_completion(self) -> int:
        return len(self.entries) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Entries still to be computed before the next token can be sampled."""
        return len(self.entries) - self.num_computed


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token of one request, or its end. The last event of a request has a `finish_reason`.

    An end-of-generation or stop token is reported with `is_text` false: it ends the answer and is not part of it.
    """

    request_id: str
    token_id: int | None
    is_text: bool
    finish_reason: FinishReason | None = None
