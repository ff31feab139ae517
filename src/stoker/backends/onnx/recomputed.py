"""Runs a graph that was exported without a KV cache: every run recomputes a whole sequence.

A token costs as much as the whole text before it. Hits of the prefix cache are correct but save no computation.
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
    """The tokens of all slots in place of their KV. Satisfies `GraphKV`, except that KV cannot be exported or restored.

    Args:
        max_tokens: length of the longest sequence, in tokens.
        num_slots: number of sequences.
    """

    def __init__(self, session: Session, signature: Signature, max_tokens: int, num_slots: int, mark: Mark) -> None:
        self._session = session
        self._mark = mark
        self._feeds = Feeds(signature, max_tokens)
        self._tokens: list[list[int]] = [[] for _ in range(num_slots)]
        self._computed: dict[int, list[int]] = {}
        """For each slot the tokens that the last run computed and that are not committed yet."""

    def length(self, slot: int) -> int:
        """See `GraphKV.length`."""
        return len(self._tokens[slot])

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        """See `GraphKV.copy_prefix`."""
        self._tokens[target] = self._tokens[source][:length]

    def truncate(self, slot: int, length: int) -> None:
        """See `GraphKV.truncate`."""
        del self._tokens[slot][length:]

    def use(self, session: Session) -> None:
        """See `GraphKV.use`."""
        self._session = session

    def compute(self, chunks: Sequence[Chunk], num_logits: int) -> Rows:
        """See `GraphKV.compute`. Each slot's whole sequence, with its new tokens, gets a run of its own."""
        return [self._run(chunk.slot, chunk.entries, num_logits) for chunk in chunks]

    def commit(self, slot: int, end: int) -> None:
        """See `GraphKV.commit`."""
        self._tokens[slot] = self._computed.pop(slot)[:end]

    def finish(self) -> None:
        """Does nothing: there is no memory to return."""

    def export(self, slot: int, start: int, end: int) -> KVBytes:
        """Never called, because the traits say that KV cannot be exported."""
        raise AssertionError("a graph without a cache has no KV")

    def restore(self, slot: int, start: int, end: int, state: memoryview) -> bool:
        """Always false: there is no KV to restore."""
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
