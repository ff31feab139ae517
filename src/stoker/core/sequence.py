"""The state of one request while it is processed: its entries, how many are computed, and why it ended."""

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
    """Why a sequence ended. The values are those on the wire."""

    STOP = "stop"
    """An end-of-generation token, a stop token or a stop string."""
    LENGTH = "length"
    """`max_tokens` or the default length reached, or the context is full."""
    CANCELLED = "cancelled"
    ERROR = "error"


class CacheKey(NamedTuple):
    """Cache key: KV computed under one key is never reused under another."""

    adapters: AdapterSet = ()
    owner: str | None = None
    """The group or request that alone may read the KV; None = every request with the same adapters."""
    is_isolated: bool = False
    """The owner is a request that is retried on its own."""


@dataclass(slots=True, eq=False)
class Sequence:
    """A live request; owned by `Population`, changed only by the parts of the scheduler, compared by identity.

    ```
    entries:  [ prompt ............ | completion ... ]
              [ cached | computed ......... | not yet ]
                         num_computed ^       ^ len(entries)
    ```
    """

    request: Request
    arrival: int = 0
    """Number of the request in order of arrival."""
    ends: frozenset[Entry] = frozenset()
    """Token ids that end the sequence."""
    max_entries: int = sys.maxsize
    """Maximum number of entries, prompt and completion together."""
    entries: list[Entry] = field(default_factory=list[Entry])
    rank: tuple[int, int] = field(init=False)
    """Smaller ranks are served first and preempted last: higher priority, then older."""
    slot: int | None = None
    """The slot of the KV pool that holds its KV; None = it does not run."""
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
    """A step with entries of the sequence was planned."""
    num_preempted: int = 0
    num_paused: int = 0
    """How often it was paused because its client read too slowly."""
    num_passed_over: int = 0
    """How often a later sequence was admitted first because it could reuse more."""
    num_prefix_waits: int = 0
    """How often its admission was postponed because a running sequence computes a common prefix."""
    chain: Chain | None = None
    """Keys of its KV blocks in the tiers (RAM, disk); None = its KV is neither exported nor restored."""
    fetched_keys: list[bytes] = field(default_factory=list[bytes])
    """Keys of KV that is being read from disk for this sequence."""
    num_restorable: int = 0
    """Length of the prefix that is restored from the tiers; the entries before it are not computed."""
    checkpoints: list[int] = field(default_factory=list[int])
    """Lengths, ascending, at which the sequence must still leave checkpoints in the pool."""
    shift: int = field(init=False)
    """Rotary position of an entry after the prompt, minus the index of the entry."""
    guide: Guide | None = None
    """The constraint (grammar) on its answer, as speculative decoding uses it; None = no constraint."""
    drafter: Drafter | None = None
    """Drafts its next entries; None = no draft was asked for yet."""
    is_isolated: bool = False
    """A forward pass with its prompt failed: the retry neither reads the KV of others nor leaves any for them."""
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        self.entries = list(self.request.prompt)
        self.rank = (-self.request.priority, self.arrival)
        self.shift = self.shift_at(self.num_prompt)

    @classmethod
    def begin(cls, request: Request, arrival: int, info: ModelInfo) -> Sequence:
        """A new sequence for generation, with the end tokens and the maximum length of the request and the model."""
        sampling, context = request.sampling, info.max_sequence_tokens
        ends = frozenset(sampling.stop_token_ids or ())
        if not sampling.ignore_eos:
            ends |= info.eog_token_ids
        max_tokens = sampling.max_tokens
        max_entries = context if max_tokens is None else min(context, len(request.prompt) + max_tokens)
        return cls(request, arrival, ends, max_entries)

    def shift_at(self, index: int) -> int:
        """Rotary position of a token at this index, minus the index."""
        spans = self.request.spans
        return sum(span.num_positions - span.length for start, span in spans if start + span.length <= index)

    def row_pieces(self, start: int, end: int) -> tuple[RowPiece, ...]:
        """The image rows among the entries `start … end-1`."""
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
        """The key for reusable KV: shared by all requests with these adapters; by the group if `cache_prompt=False`."""
        request = self.request
        if self.is_isolated:
            return CacheKey(owner=request.request_id, is_isolated=True)
        return CacheKey(request.adapters, None if request.cache_prompt else request.group or request.request_id)

    @property
    def is_shared(self) -> bool:
        """The KV of this sequence may be retained for other requests."""
        return self.request.cache_prompt and not self.is_isolated

    @property
    def is_restoring(self) -> bool:
        return self.num_computed < self.num_restorable

    @property
    def num_prompt(self) -> int:
        return len(self.request.prompt)

    @property
    def cached_from(self) -> tuple[int, int, int]:
        """Numbers of cached prompt entries that came from the KV pool, from RAM and from disk."""
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
        """Pending entries that must be computed because the tiers cannot restore them."""
        return len(self.entries) - max(self.num_computed, self.num_restorable)


class TokenEvent(NamedTuple):
    """One token of one request, or its end. The last event of a request has a `finish_reason`.

    An end-of-generation or stop token is reported with `is_text` false: it ends the answer and is not part of it.
    """

    request_id: str
    token_id: int | None
    is_text: bool
    finish_reason: FinishReason | None = None
