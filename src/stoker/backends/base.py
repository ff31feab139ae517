"""The interface between the scheduler, which decides, and a backend, which computes forward passes.

`Backend` is what every backend offers; each other protocol is an optional capability. It implements no model.
"""

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
"""Logits of shape `(batch.num_rows, vocab_size)`, rows in the order of the chunks. The array is valid until the next
call of `forward`; the caller may write to it."""

Embeddings: TypeAlias = NDArray[np.float32]
"""Embeddings of shape `(sequences, EmbeddingInfo.size)`, not normalized. The caller owns the array."""


class Backend(Protocol):
    """A loaded model with its KV cache. Only one thread calls it. It executes batches and never schedules."""

    @property
    def info(self) -> ModelInfo: ...

    def forward(self, batch: Batch) -> Logits:
        """Applies `batch.ops` in order, computes every chunk, and returns the logits of the rows that chunks ask for.

        Raises:
            BackendError: no chunk of this batch was computed; its cache operations may have been applied. The caller
                empties every slot that the batch touched before it continues.
        """
        ...

    def close(self) -> None:
        """Frees everything. Calling it twice is allowed."""
        ...


class KVPort(Protocol):
    """Export and import of KV as bytes, by backends with the trait `can_export`. Called between two forward passes.

    Which positions can be exported: any range `start … end-1` that a slot holds if the backend has the trait
    `can_truncate`; otherwise only `0 … end-1` of a slot that holds exactly `end` positions. With the trait
    `exports_apart`, also whole blocks without a state, and, with the state, the range from such blocks to `end`. The
    bytes are valid only for a model with the same weights, adapters and `ModelInfo.kv_format`, but there in any slot
    and any process. Export and import copy; neither may keep a reference, nor wait for anything but memory.
    """

    def export_kv(
        self, slot: int, start: int, end: int, take: TakeMemory = new_memory, *, has_state: bool = True
    ) -> KVBytes:
        """Returns a copy of the KV of positions `start … end-1` of a slot; the slot does not change.

        Args:
            take: allocates memory for the copy. A backend whose library allocates by itself need not call it.
            has_state: whether the bytes include the recurrent state or window of the slot, with `exports_apart`.

        Raises:
            BackendError: these positions cannot be exported; nothing has changed.
        """
        ...

    def import_kv(self, slot: int, start: int, end: int, state: KVBytes, *, has_state: bool = True) -> None:
        """Appends exported KV to a slot that holds `start` positions; the slot holds `end` positions afterwards.

        If the model needs a state and this import has none, the slot is unusable until an import that has the state.

        Raises:
            BackendError: there is no room, or the bytes are not what `export_kv` returned for these positions; the
                slot is unchanged.
        """
        ...

    def expect_kv(self, num_bytes: int) -> None:
        """Announces likely imports of `num_bytes` of KV in total, including all that was announced before.

        The backend may prepare memory for them. One thread calls this, not necessarily the one that calls `forward`,
        at any time, also after `close`.
        """
        ...


class MaximaPort(Protocol):
    """Maxima of logits, by backends that inspect logits while computing them. Saves sampling a pass over the rows."""

    @property
    def maxima(self) -> Logits:
        """The largest logit of each block of 64 logits in each row of the last forward pass: `(rows, blocks)`.

        The last block may be shorter. The value is +inf where a block holds +inf or NaN. Valid until the next pass.
        """
        ...


Guess: TypeAlias = Callable[[Logits, Sequence[tuple[int, int]]], list[Entry]]
"""Chooses a token from each row of logits. For each row it is given the slot, and how many entries of that slot the
draft has already."""


def most_likely(logits: Logits, _: Sequence[tuple[int, int]]) -> list[Entry]:
    """The `Guess` for greedy requests, which are not sampled: the token with the largest logit of each row."""
    return logits.argmax(axis=1).tolist()


class DraftHeadPort(Protocol):
    """Speculative decoding with a draft head (MTP, EAGLE) that the model has. Called between two forward passes."""

    def can_draft(self, slot: int) -> bool:
        """Whether the head has what it needs of all entries of a slot; a head that is seldom asked may miss some."""
        ...

    def num_waiting(self, slot: int) -> int:
        """Entries of a slot that the head has not computed yet: it computes them with its next draft."""
        ...

    def draft(self, wanted: Sequence[tuple[int, int, Entry, int]], guess: Guess = most_likely) -> list[list[Entry]]:
        """Drafts the next entries of sequences. The drafted entries do not stay in any slot.

        Args:
            wanted: for each sequence its slot, how many of the slot's positions to keep, the entry that follows them,
                and how many entries to draft.
            guess: chooses a token from each row of the head's logits.

        Returns:
            For each sequence the drafted entries, as many as are wanted, or none where there is no room.

        Raises:
            BackendError: the pass of the head failed.
        """
        ...


class RowsPort(Protocol):
    """Input embeddings (rows of an image or audio) in place of token ids. Called between two forward passes."""

    row_width: int
    """How many numbers a row has."""

    def hold_rows(self, key: bytes, rows: NDArray[np.float32]) -> None:
        """Keeps the rows of the span with this key, `(length, row_width)`, float32; chunks refer to them by the key."""
        ...

    def drop_rows(self, key: bytes) -> None:
        """Frees the rows of the span with this key, which no chunk names any more. Unknown keys are ignored."""
        ...


class LendingPort(Protocol):
    """Return of unused KV memory, by backends whose KV memory is committed on first use. Called between two passes."""

    def give_back_kv(self) -> None:
        """Returns memory of KV that no slot holds to the operating system; its next use commits it again."""
        ...


class AdapterPort(Protocol):
    """LoRA adapters, by backends that can apply them. Called between two forward passes."""

    def load_adapter(self, key: str, path: Path) -> None:
        """Loads an adapter, which is not loaded yet, under the key that names its content in `Chunk.adapters`.

        Raises:
            AdapterInvalid: the adapter does not fit the model, or the file cannot be read.
            ResourceExhausted: there is no memory for the adapter.
        """
        ...

    def unload_adapter(self, key: str) -> None:
        """Frees a loaded adapter, which no chunk names any more. KV that was computed with it stays as it is."""
        ...


class Embedder(Protocol):
    """Embeddings of texts. Called between two forward passes; it does not touch the slots of those passes."""

    @property
    def embedding(self) -> EmbeddingInfo: ...

    def embed(self, pieces: Sequence[Piece]) -> Embeddings:
        """Computes all pieces; returns a row for each piece that is the last one of its sequence, in their order.

        With `Pooling.RANK` the row is one number: the classifier's raw score, before a sigmoid or the like bounds it.

        Raises:
            BackendError: nothing was computed; a sequence in slot 0 must begin again with its first piece.
            ResourceExhausted: there is no memory for the computation.
        """
        ...
