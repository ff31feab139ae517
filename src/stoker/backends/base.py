"""The seam between deciding and computing: what every forward-pass backend offers, and no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.core.batch import Batch, Entry
from stoker.core.embedding import EmbeddingInfo, Piece
from stoker.core.model_info import ModelInfo
from stoker.core.tiers import KVBytes, TakeMemory, new_memory

Logits: TypeAlias = NDArray[np.float32]
"""`(batch.num_rows, vocab_size)`, rows in chunk order. Valid until the next `forward`; the caller may write to it."""

Embeddings: TypeAlias = NDArray[np.float32]
"""`(sequences, EmbeddingInfo.size)`, not normalised. Owned by the caller."""


class Backend(Protocol):
    """A loaded model with its KV cache. One thread calls it; it decides nothing."""

    @property
    def info(self) -> ModelInfo: ...

    def forward(self, batch: Batch) -> Logits:
        """Applies `batch.ops` in order, computes every chunk, and returns the rows asked for.

        Raises:
            BackendError: nothing of this batch was computed; its operations may have been applied.
                The caller empties the slots it touched before it goes on.
        """
        ...

    def close(self) -> None:
        """Frees everything. Calling it twice is allowed."""
        ...


class KVPort(Protocol):
    """What a backend whose traits say `can_export` offers besides: KV as bytes. Called between two forward passes.

    Which positions can be had: any `start … end-1` that a slot holds if the traits say `can_truncate`; otherwise only
    `0 … end-1` where the slot holds exactly `end`. With the trait `exports_apart`, whole blocks without a state too,
    and what leads from such blocks to `end`, with the state. Bytes mean something only to a model with the same
    weights, the same adapters and the same `ModelInfo.kv_format`, but there in any slot and in any process. Export and
    import copy; neither may keep a reference, nor wait for anything but memory.
    """

    def export_kv(
        self, slot: int, start: int, end: int, take: TakeMemory = new_memory, *, has_state: bool = True
    ) -> KVBytes:
        """The KV of some positions of a slot, which stay as they are.

        Args:
            take: gives memory for the copy. A backend whose library brings its own need not ask.
            has_state: with what the slot holds besides positions, if the traits say `exports_apart`.

        Raises:
            BackendError: it cannot be had; nothing has changed.
        """
        ...

    def import_kv(self, slot: int, start: int, end: int, state: KVBytes, *, has_state: bool = True) -> None:
        """Appends exported KV to a slot that holds `start` positions; it holds `end` afterwards.

        Without the state that its model needs, the slot is of no use before an import that has it.

        Raises:
            BackendError: there is no room, or the bytes are not what `export_kv` gave for these positions; the slot
                is as before.
        """
        ...

    def expect_kv(self, num_bytes: int) -> None:
        """Announces a likely import of this many bytes of KV, all earlier announcements included.

        Memory for them may be made ready meanwhile. One thread calls this, any one, at any time, also after `close`.
        """
        ...


class MaximaPort(Protocol):
    """What a backend offers besides, if it inspects logits while computing them. That saves a second pass over rows."""

    @property
    def maxima(self) -> Logits:
        """Of the rows of the last forward pass the largest logit of each block of 64: `(rows, blocks)`.

        The last block may be shorter. +inf where a block holds +inf or NaN. Valid until the next pass.
        """
        ...


Guess: TypeAlias = Callable[[Logits, Sequence[tuple[int, int]]], list[Entry]]
"""Chooses a token from each row of logits, given whose row it is (a slot) and how many entries were drafted before."""


def most_likely(logits: Logits, _: Sequence[tuple[int, int]]) -> list[Entry]:
    """A `Guess` for requests that are not sampled."""
    return logits.argmax(axis=1).tolist()


class DraftHeadPort(Protocol):
    """What a backend offers besides whose model has a head that guesses further tokens. Called between two passes."""

    def can_draft(self, slot: int) -> bool:
        """Whether the head has seen what was computed in a slot: a head that is seldom asked may stop looking."""
        ...

    def num_waiting(self, slot: int) -> int:
        """Entries of a slot that the head has not seen yet: it computes them with its next guess."""
        ...

    def draft(self, wanted: Sequence[tuple[int, int, Entry, int]], guess: Guess = most_likely) -> list[list[Entry]]:
        """Guesses how sequences go on; nothing of it stays.

        Args:
            wanted: slot, of how many of its positions to keep, the entry that follows them, and how many to guess.
            guess: chooses from logits.

        Returns:
            As many entries for each as are wanted, or none where there is no room.

        Raises:
            BackendError: it cannot be computed.
        """
        ...


class RowsPort(Protocol):
    """What a backend offers besides that computes rows in place of token ids. Called between two forward passes."""

    row_width: int
    """Numbers of a row."""

    def hold_rows(self, key: bytes, rows: NDArray[np.float32]) -> None:
        """The rows of a span with this key, `(length, row_width)`, float32: chunks name them from now on."""
        ...

    def drop_rows(self, key: bytes) -> None:
        """No chunk names these rows any more. Unknown keys are ignored."""
        ...


class LendingPort(Protocol):
    """What a backend offers besides that commits memory of its KV only as it is used. Called between two passes."""

    def give_back_kv(self) -> None:
        """Memory of KV that no slot holds any more is the system's again; it is committed anew when it is used."""
        ...


class AdapterPort(Protocol):
    """What a backend that can apply LoRA adapters offers besides. Called between two forward passes."""

    def load_adapter(self, key: str, path: Path) -> None:
        """Makes an adapter known under the key that names its content in `Chunk.adapters`. It is not loaded yet.

        Raises:
            AdapterInvalid: it does not fit the model, or the file cannot be read.
            ResourceExhausted: there is no memory for it.
        """
        ...

    def unload_adapter(self, key: str) -> None:
        """Frees a loaded adapter, which no chunk names any more. What was computed with it stays as it is."""
        ...


class Embedder(Protocol):
    """What a backend that can embed offers besides. Called between two forward passes; no slot of theirs is touched."""

    @property
    def embedding(self) -> EmbeddingInfo: ...

    def embed(self, pieces: Sequence[Piece]) -> Embeddings:
        """Computes all pieces, and returns a row for each that is the last one of its sequence, in their order.

        With `Pooling.RANK` the row is one number: the classifier's, before any function that bounds it.

        Raises:
            BackendError: nothing was computed; a sequence in slot 0 must begin anew.
            ResourceExhausted: there is no memory for it.
        """
        ...
