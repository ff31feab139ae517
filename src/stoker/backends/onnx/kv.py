"""The interface through which the backend runs a graph and holds its KV, independent of how the graph returns KV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from stoker.backends.onnx.runtime import Session
from stoker.core.batch import Chunk
from stoker.core.tiers import KVBytes

Rows: TypeAlias = Sequence[NDArray[Any]]


class GraphKV(Protocol):
    """KV of all slots of one backend. `compute` changes no lengths, but `commit` does: a failed run has no effect."""

    def length(self, slot: int) -> int:
        """Number of positions that a slot holds."""
        ...

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` positions of slot `source` to the empty slot `target`."""
        ...

    def truncate(self, slot: int, length: int) -> None:
        """Cuts a slot back to its first `length` positions."""
        ...

    def use(self, session: Session) -> None:
        """Makes another session of the same graph compute from now on. All committed KV is kept.

        Raises:
            Exception: one of `load_errors`: KV on the device of the previous session cannot be read.
        """
        ...

    def compute(self, chunks: Sequence[Chunk], num_logits: int) -> Rows:
        """Computes the entries of chunks. If there are several chunks, each has one entry.

        Returns:
            For each chunk `(num_logits, vocab_size)`: the logits of its last positions. Valid until the next call.
        """
        ...

    def commit(self, slot: int, end: int) -> None:
        """Lengthens a slot to `end` positions, which were computed."""
        ...

    def finish(self) -> None:
        """Ends a step, all of whose chunks are committed; memory may be returned to the system."""
        ...

    def export(self, slot: int, start: int, end: int) -> KVBytes:
        """A copy of the KV of positions `start … end-1` of a slot."""
        ...

    def restore(self, slot: int, start: int, end: int, state: memoryview) -> bool:
        """Appends exported KV to a slot. False, with nothing changed, if the bytes are not KV of these positions."""
        ...
