"""Which sequences are embedded next, and how much of them in one pass. It computes nothing and has no clock."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from enum import Enum

from stoker.core.batch import Entry
from stoker.core.sequence import Sequence
from stoker.core.token_budget import MIN_CHUNK
from stoker.core.waiting import WaitingQueue


class Pooling(Enum):
    """What of a sequence's last hidden states becomes its embedding. The values are the words of the wire."""

    MEAN = "mean"
    CLS = "cls"
    """That of the first token."""
    LAST = "last"
    """That of the last token."""
    RANK = "rank"
    """None of them: the model's own classifier gives one number, how well a text answers a query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingInfo:
    """What an embedder says about itself, once. Sizes are in tokens unless the name says otherwise."""

    pooling: Pooling
    size: int
    """Numbers of one embedding; 1 with `Pooling.RANK`."""
    max_tokens: int
    """Longest sequence."""
    max_batch_tokens: int
    """Most tokens of one pass."""
    num_slots: int
    """Most sequences of one pass."""
    can_split: bool
    """A sequence may be computed in several passes: every token sees only those before it."""
    suffix: tuple[Entry, ...] = ()
    """What the model wants behind every sequence."""
    separator: tuple[Entry, ...] = ()
    """What it wants between the two texts of a pair."""
    rank_template: str | None = None
    """How a pair is written, with `{query}` and `{document}` in it; None = the one behind the other."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some entries of one sequence, as part of a pass.

    Slot 0 is for a sequence that is computed in several passes: it holds what came before, until a piece that starts
    at 0 comes. Any other slot takes a whole sequence and is empty afterwards.
    """

    slot: int
    start: int
    entries: tuple[Entry, ...]
    is_last: bool

    @property
    def end(self) -> int:
        return self.start + len(self.entries)


class EmbeddingQueue:
    """The sequences to be embedded, by priority and then fairly between client keys, as those that are answered.

    At most one of them is computed in part. One thread uses it.
    """

    def __init__(self, info: EmbeddingInfo) -> None:
        self._info = info
        self._waiting = WaitingQueue()
        self._split: Sequence | None = None
        """The one in slot 0."""
        self.num_tokens = 0
        """Of all that wait, or are computed in part."""

    @property
    def has_work(self) -> bool:
        return self._split is not None or len(self._waiting) > 0

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence that is no longer than the embedder takes."""
        assert 0 < len(sequence.entries) <= self._info.max_tokens
        self._waiting.push(sequence)
        self.num_tokens += sequence.num_pending

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out that has not been computed to its end."""
        self.num_tokens -= sequence.num_pending
        if sequence is self._split:
            self._split = None
        else:
            self._waiting.remove(sequence)

    def plan(self, num_tokens: int) -> list[tuple[Sequence, Piece]]:
        """The next pass: about so many tokens, but always something.

        A sequence that cannot be split is taken even if it alone is longer.
        """
        budget = left = min(max(num_tokens, MIN_CHUNK), self._info.max_batch_tokens)
        split, planned = self._split, list[tuple[Sequence, Piece]]()
        if split is not None:
            # Short ones do not wait for the end of a long one.
            left -= min(split.num_pending, -(-left // 2))
        for sequence in self._waiting.candidates(self._info.num_slots - 1):
            if sequence.num_pending <= left:
                planned.append((sequence, Piece(1 + len(planned), 0, tuple(sequence.entries), is_last=True)))
                left -= sequence.num_pending
            elif self._info.can_split and split is None and left:
                split, left = sequence, 0
            elif not planned and split is None:
                return [(sequence, Piece(1, 0, tuple(sequence.entries), is_last=True))]
            else:
                break
        if split is None:
            return planned
        return [_cut(split, budget - sum(len(piece.entries) for _, piece in planned)), *planned]

    def update(self, planned: Items[tuple[Sequence, Piece]]) -> None:
        """A pass was computed. Sequences that have come to their end are forgotten."""
        for sequence, piece in planned:
            self._waiting.charge(sequence.request.client_key, len(piece.entries))
            self.num_tokens -= len(piece.entries)
            if sequence is not self._split:
                self._waiting.take(sequence)
            sequence.num_computed = piece.end
            if piece.slot == 0:
                self._split = None if piece.is_last else sequence
        active = set[str]() if self._split is None else {self._split.request.client_key}
        self._waiting.forget_idle(active)


def _cut(sequence: Sequence, num_tokens: int) -> tuple[Sequence, Piece]:
    start, end = sequence.num_computed, min(sequence.num_computed + num_tokens, len(sequence.entries))
    return sequence, Piece(0, start, tuple(sequence.entries[start:end]), is_last=end == len(sequence.entries))
