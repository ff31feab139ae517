"""The two ways to hold a graph's KV and to run it: what the backend needs of either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from stoker.backends.onnx.runtime import Session
from stoker.core.batch import Chunk
from stoker.core.tiers import KVBytes

Rows: TypeAlias = Sequence[NDArray[Any]]


class GraphKV(Protocol):
    """KV of all slots of one backend. Lengths change by `commit` alone, so a failed run leaves no trace."""

    def length(self, slot: int) -> int:
        """Positions that a slot holds."""
        ...

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """The first positions of one slot appear in another, empty one."""
        ...

    def truncate(self, slot: int, length: int) -> None:
        """A slot keeps its first positions."""
        ...

    def use(self, session: Session) -> None:
        """From now on, another session of the same graph computes; everything that was committed stays.

        Raises:
            Exception: one of `load_errors`: what lies on the device of the former session cannot be read.
        """
        ...

    def compute(self, chunks: Sequence[Chunk], num_logits: int) -> Rows:
        """Computes the new entries of each chunk's slot: of several chunks, one each.

        Returns:
            For each chunk `(num_logits, vocab_size)`: the logits of its last positions. Valid until the next call.
        """
        ...

    def commit(self, slot: int, end: int) -> None:
        """What was computed for a slot, up to this position, belongs to it."""
        ...

    def finish(self) -> None:
        """Everything of this step is committed."""
        ...

    def export(self, slot: int, start: int, end: int) -> KVBytes:
        """The KV of some positions of a slot."""
        ...

    def restore(self, slot: int, start: int, end: int, state: memoryview) -> bool:
        """Appends exported KV; false, and nothing done, if these bytes are something else."""
        ...
