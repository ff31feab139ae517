"""The queue of texts to embed: chooses the sequences of the next forward pass. It computes nothing and has no clock."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from enum import Enum

from stoker.core.batch import Entry
from stoker.core.sequence import Sequence
from stoker.core.token_budget import MIN_CHUNK
from stoker.core.waiting import WaitingQueue


class Pooling(Enum):
    """How the last hidden states of a sequence become its embedding. The values are those of `--pooling` and `rank`."""

    MEAN = "mean"
    CLS = "cls"
    """The hidden state of the first token."""
    LAST = "last"
    """The hidden state of the last token."""
    RANK = "rank"
    """Reranking: the model's own classifier gives one number, how well a text answers a query."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingInfo:
    """Sizes and abilities of a loaded embedder. Sizes are in tokens unless the name says otherwise."""

    pooling: Pooling
    size: int
    """Number of dimensions of an embedding; 1 with `Pooling.RANK`."""
    max_tokens: int
    """Maximum length of a sequence."""
    max_batch_tokens: int
    """Maximum number of tokens in one forward pass."""
    num_slots: int
    """Maximum number of sequences in one forward pass."""
    can_split: bool
    """A sequence may be computed in several passes, because attention is causal."""
    suffix: tuple[Entry, ...] = ()
    """Tokens that the model expects after every sequence."""
    separator: tuple[Entry, ...] = ()
    """Tokens that the model expects between the query and the document of a pair (reranking)."""
    rank_template: str | None = None
    """Template of a pair, with `{query}` and `{document}`; None = the query is followed by the document."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some entries of one sequence, as part of one forward pass.

    Slot 0 is for a sequence that is computed in several passes: it keeps the earlier entries until a piece starts at
    position 0. Any other slot takes a whole sequence and is empty after the pass.
    """

    slot: int
    start: int
    entries: tuple[Entry, ...]
    is_last: bool

    @property
    def end(self) -> int:
        return self.start + len(self.entries)


class EmbeddingQueue:
    """The sequences to embed, by priority and then fairly between client keys, in the same order as generation.

    At most one sequence is partly computed. One thread uses the queue.
    """

    def __init__(self, info: EmbeddingInfo) -> None:
        self._info = info
        self._waiting = WaitingQueue()
        self._split: Sequence | None = None
        """The partly computed sequence, in slot 0; None = there is none."""
        self.num_tokens = 0
        """Number of tokens still to be computed, of all sequences."""

    @property
    def has_work(self) -> bool:
        return self._split is not None or len(self._waiting) > 0

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence that is no longer than the embedder takes."""
        assert 0 < len(sequence.entries) <= self._info.max_tokens
        self._waiting.push(sequence)
        self.num_tokens += sequence.num_pending

    def remove(self, sequence: Sequence) -> None:
        """Removes a sequence that is not completely computed."""
        self.num_tokens -= sequence.num_pending
        if sequence is self._split:
            self._split = None
        else:
            self._waiting.remove(sequence)

    def plan(self, num_tokens: int) -> list[tuple[Sequence, Piece]]:
        """Plans the next pass: about `num_tokens` tokens, and never empty if a sequence waits.

        A longer sequence that cannot be split is taken alone.
        """
        budget = left = min(max(num_tokens, MIN_CHUNK), self._info.max_batch_tokens)
        split, planned = self._split, list[tuple[Sequence, Piece]]()
        if split is not None:
            # Short sequences do not wait for the end of a long one.
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
        """Notes that a pass was computed, and forgets the sequences that are complete."""
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
