"""A request on its way: which entries it has, how many of them are computed, and how it ended."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from stoker.core.batch import AdapterSet, Entry
from stoker.core.blocks import Chain
from stoker.core.drafter import Drafter, Guide
from stoker.core.media import RowPiece
from stoker.core.model_info import ModelInfo
from stoker.core.request import Request


class FinishReason(Enum):
    """Why a sequence ended. The values are those of the wire."""

    STOP = "stop"
    """An end-of-generation token, a stop token or a stop string."""
    LENGTH = "length"
    """`max_tokens` or the default length reached, or the context is full."""
    CANCELLED = "cancelled"
    ERROR = "error"


class CacheKey(NamedTuple):
    """Under which KV lies in the pool: it is found under no other one."""

    adapters: AdapterSet = ()
    owner: str | None = None
    """The group or request that alone may read the KV; None = every request with the same adapters."""
    is_isolated: bool = False
    """The owner is a request that is retried on its own."""


@dataclass(slots=True, eq=False)
class Sequence:
    """Owned by `Population`; changed by the scheduler's parts alone. Equal only to itself.

    ```
    entries:  [ prompt ............ | completion ... ]
              [ cached | computed ......... | not yet ]
                         num_computed ^       ^ len(entries)
    ```
    """

    request: Request
    arrival: int = 0
    """Grows with every request: the order in which they came."""
    ends: frozenset[Entry] = frozenset()
    """Token ids that end the sequence."""
    max_entries: int = sys.maxsize
    """Maximum length, prompt and completion together."""
    entries: list[Entry] = field(default_factory=list[Entry])
    rank: tuple[int, int] = field(init=False)
    """Smaller ranks are served first and preempted last: higher priority, then older."""
    slot: int | None = None
    """The native sequence that holds this one's KV while it runs."""
    num_computed: int = 0
    """Entries whose KV is in the slot."""
    num_cached: int = 0
    """Prompt entries taken from the cache when the sequence began."""
    num_resident: int = 0
    """Cached prompt entries that were in the pool; the tiers supplied the others."""
    num_from_disk: int = 0
    """Prompt entries whose KV was only on disk when the request arrived."""
    num_scored: int = 0
    """Prompt entries whose row of logits was delivered, if the request scores its prompt."""
    has_begun: bool = False
    """Some step has taken entries of it."""
    num_preempted: int = 0
    num_paused: int = 0
    """How often its reader was too slow for it."""
    num_passed_over: int = 0
    """How often a later sequence was admitted first because it could reuse more."""
    num_prefix_waits: int = 0
    """How often it was put off because a running sequence computes a common prefix."""
    chain: Chain | None = None
    """The names of its blocks in the tiers; None = they have no part in it."""
    fetched_keys: list[bytes] = field(default_factory=list[bytes])
    """What is being read from disk for it."""
    num_restorable: int = 0
    """Entries that are in the slot once the tiers have given what they have; up to there nothing is computed."""
    checkpoints: list[int] = field(default_factory=list[int])
    """The lengths, ascending, at which it has still to leave checkpoints in the pool."""
    shift: int = field(init=False)
    """Rotary position of what stands behind its prompt, less the index."""
    guide: Guide | None = None
    """What its answer must look like; None = anything."""
    drafter: Drafter | None = None
    """Guesses how it goes on, once that was asked for."""
    is_isolated: bool = False
    """Its prompt failed once: it is tried again, alone, with nothing that others left and leaving nothing behind."""
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.entries = list(self.request.prompt)
        self.rank = (-self.request.priority, self.arrival)
        self.shift = self.shift_at(self.num_prompt)

    @classmethod
    def begin(cls, request: Request, arrival: int, info: ModelInfo) -> Sequence:
        """One that a model is to write on: it ends as the request and the model say."""
        sampling, context = request.sampling, info.max_sequence_tokens
        ends = frozenset(sampling.stop_token_ids or ())
        if not sampling.ignore_eos:
            ends |= info.eog_token_ids
        max_tokens = sampling.max_tokens
        max_entries = context if max_tokens is None else min(context, len(request.prompt) + max_tokens)
        return cls(request, arrival, ends, max_entries)

    def shift_at(self, index: int) -> int:
        """Rotary position of a token at this index, less the index."""
        spans = self.request.spans
        return sum(span.num_positions - span.length for start, span in spans if start + span.length <= index)

    def row_pieces(self, start: int, end: int) -> tuple[RowPiece, ...]:
        """Which of the entries `start … end-1` are rows of images."""
        return tuple(
            RowPiece(
                offset=max(start, placed.start) - start,
                first=max(start, placed.start) - placed.start,
                length=min(end, placed.end) - max(start, placed.start),
                span=placed.span,
                position=placed.start + self.shift_at(placed.start),
            )
            for placed in self.request.spans
            if placed.start < end and placed.end > start
        )

    @property
    def cache_key(self) -> CacheKey:
        """Whose KV it may read: that of all with the same adapters, or with `cache_prompt=False` its group's only."""
        request = self.request
        if self.is_isolated:
            return CacheKey(owner=request.request_id, is_isolated=True)
        return CacheKey(request.adapters, None if request.cache_prompt else request.group or request.request_id)

    @property
    def is_shared(self) -> bool:
        """What it computes may stay for others."""
        return self.request.cache_prompt and not self.is_isolated

    @property
    def is_restoring(self) -> bool:
        return self.num_computed < self.num_restorable

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def cached_from(self) -> tuple[int, int, int]:
        """Cached prompt entries by where they were: in the pool, in memory, on disk."""
        resident = min(self.num_resident, self.num_prompt)
        restored = min(self.num_cached, self.num_prompt) - resident
        from_disk = min(restored, self.num_from_disk)
        return resident, restored - from_disk, from_disk

    @property
    def num_completion(self) -> int:
        return len(self.entries) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Entries still to be computed before the next token can be sampled."""
        return len(self.entries) - self.num_computed

    @property
    def num_uncached(self) -> int:
        """Pending entries that really have to be computed."""
        return len(self.entries) - max(self.num_computed, self.num_restorable)


class TokenEvent(NamedTuple):
    """One token of one request, or its end. The last event of a request has a `finish_reason`.

    An end-of-generation or stop token is reported with `is_text` false: it ends the answer and is not part of it.
    """

    request_id: str
    token_id: int | None
    is_text: bool
    finish_reason: FinishReason | None = None
