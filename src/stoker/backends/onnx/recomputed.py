"""Runs a graph that was exported without a cache: every run computes a whole sequence again.

A token costs as much as the text before it. Prefixes that are found again save nothing, and are right all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from stoker.backends.onnx.feeds import Feeds, make_run
from stoker.backends.onnx.kv import Rows
from stoker.backends.onnx.runtime import Session
from stoker.backends.onnx.signature import Signature
from stoker.core.batch import Chunk
from stoker.core.stages import Mark
from stoker.core.tiers import KVBytes


class RecomputedKV:
    """The tokens of all slots instead of their KV. Satisfies `backends.onnx.kv.GraphKV`, but for export and restore.

    Args:
        max_tokens: longest sequence.
        num_slots: sequences.
    """

    def __init__(self, session: Session, signature: Signature, max_tokens: int, num_slots: int, mark: Mark) -> None:
        self._session = session
        self._mark = mark
        self._feeds = Feeds(signature, max_tokens)
        self._tokens: list[list[int]] = [[] for _ in range(num_slots)]
        self._computed: dict[int, list[int]] = {}
        """By slot what the last runs computed; it counts when it is committed."""

    def length(self, slot: int) -> int:
        """Positions that a slot holds."""
        return len(self._tokens[slot])

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """The first positions of one slot appear in another, empty one."""
        self._tokens[target] = self._tokens[source][:length]

    def truncate(self, slot: int, length: int) -> None:
        """A slot keeps its first positions."""
        del self._tokens[slot][length:]

    def use(self, session: Session) -> None:
        """See `GraphKV.use`."""
        self._session = session

    def compute(self, chunks: Sequence[Chunk], num_logits: int) -> Rows:
        """Computes each slot's sequence with its new tokens, one after the other."""
        return [self._run(chunk.slot, chunk.entries, num_logits) for chunk in chunks]

    def commit(self, slot: int, end: int) -> None:
        """What was computed for a slot belongs to it."""
        self._tokens[slot] = self._computed.pop(slot)[:end]

    def finish(self) -> None:
        """Everything of this step is committed."""

    def export(self, slot: int, start: int, end: int) -> KVBytes:
        """Never asked for, as the traits say."""
        raise AssertionError("a graph without a cache has no KV")

    def restore(self, slot: int, start: int, end: int, state: memoryview) -> bool:
        """There is nothing to restore."""
        return False

    def _run(self, slot: int, new: Sequence[int], num_logits: int) -> NDArray[Any]:
        whole = [*self._tokens[slot], *new]
        binding = self._session.inner.io_binding()
        logits = self._feeds.bind(binding, make_run([Chunk(slot, 0, tuple(whole))], num_logits), pads_left=False)
        self._mark("bind")
        self._session.inner.run_with_iobinding(binding)
        self._mark("forward")
        self._computed[slot] = whole
        return logits[0, logits.shape[1] - num_logits :].copy()
