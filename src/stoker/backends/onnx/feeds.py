"""The inputs of one run of a graph besides KV (token ids, masks, positions), and its logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.backends.onnx.entry_rows import EntryRows
from stoker.backends.onnx.runtime import CPU
from stoker.backends.onnx.signature import Role, Signature
from stoker.backends.rotary import AXES, rotary_positions
from stoker.core.batch import Chunk

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a graph: some sequences with the same number of new entries."""

    chunks: Sequence[Chunk]
    """One chunk for each sequence."""
    tokens: Integers
    """Entries of the chunks, `(sequences, new entries)`."""
    starts: Integers
    """Number of positions that each sequence holds already, `(sequences,)`."""
    num_logits: int
    """Rows of logits that are wanted of each sequence, for its last positions."""

    @property
    def num_new(self) -> int:
        return self.tokens.shape[1]

    @property
    def ends(self) -> Integers:
        return self.starts + self.num_new

    @property
    def num_kept(self) -> int:
        """Rows of logits that the graph is asked for, of each sequence; at least 1."""
        return max(self.num_logits, 1)

    @property
    def num_past(self) -> int:
        """Positions that the longest sequence holds already."""
        return int(self.starts.max())


def make_run(chunks: Sequence[Chunk], num_logits: int) -> Run:
    """Makes a run of chunks, all of which have the same number of entries."""
    return Run(
        chunks=chunks,
        tokens=np.array([chunk.entries for chunk in chunks], dtype=np.int64),
        starts=np.array([chunk.start for chunk in chunks], dtype=np.int64),
        num_logits=num_logits,
    )


class Feeds:
    """Binds the inputs of runs and their logits to a session's I/O bindings. It keeps arrays while they are bound.

    Args:
        signature: the signature of the graph.
        max_tokens: length of the longest sequence, in tokens.
        entries: computes input embeddings; None = the graph takes token ids.
    """

    def __init__(self, signature: Signature, max_tokens: int, entries: EntryRows | None = None) -> None:
        self._signature = signature
        self._entries = entries
        self._counting = np.arange(max_tokens, dtype=np.int64)
        self._logits = np.empty(0, dtype=signature.logits.type)
        self._bound: list[NDArray[Any]] = []

    def bind(self, binding: Any, run: Run, *, pads_left: bool) -> NDArray[Any]:
        """Binds all inputs but KV, and the output of logits.

        Returns:
            The array that the run will write logits to, `(sequences, rows, vocab_size)`, valid until the next call; its
            last rows belong to the last positions.
        """
        self._bound = []
        for role, port in self._signature.inputs.items():
            values = (
                self._axes(run) if role == "positions" and port.rank == AXES else self._values(role, run, pads_left)
            )
            shape = values.shape + (1,) * (port.rank - values.ndim)
            array = np.ascontiguousarray(values, dtype=port.type).reshape(shape)
            self._bound.append(array)
            binding.bind_input(port.name, CPU, 0, port.type, array.shape, array.ctypes.data)
        return self._output(binding, run)

    def _values(self, role: Role, run: Run, pads_left: bool) -> NDArray[Any]:
        match role:
            case "ids":
                return run.tokens
            case "embeds":
                assert self._entries is not None, "the backend has what makes them"
                return self._entries.of(run.chunks)
            case "mask":
                return self._mask(run, pads_left=pads_left)
            case "positions":
                return run.starts[:, None] + self._counting[: run.num_new]
            case "cache_positions":
                return run.num_past + self._counting[: run.num_new]
            case "token_types":
                return np.zeros_like(run.tokens)
            case "cache_branch":
                return np.array([run.num_past > 0])
            case "last_positions":
                return run.ends - 1
            case "total":
                return np.array(run.num_past + run.num_new)
            case "kept_rows":
                return np.array(run.num_kept)
            case "rows":
                return self._counting[run.num_new - run.num_kept : run.num_new]

    def _axes(self, run: Run) -> NDArray[Any]:
        """Positions along time, rows and columns, `(3, sequences, new entries)`."""
        return np.stack([rotary_positions(chunk).T for chunk in run.chunks], axis=1)

    def _mask(self, run: Run, *, pads_left: bool) -> NDArray[np.bool_]:
        """The attention mask. With padding on the left, sequences end together; otherwise they begin at column 0."""
        columns = self._counting[: run.num_past + run.num_new]
        if pads_left:
            return columns >= (run.num_past - run.starts)[:, None]
        return columns < run.ends[:, None]

    def _output(self, binding: Any, run: Run) -> NDArray[Any]:
        signature, port = self._signature, self._signature.logits
        num_rows = run.num_kept if signature.can_choose_rows else run.num_new if signature.gives_all_rows else 1
        shape = (len(run.starts), num_rows, signature.vocab_size)
        size = int(np.prod(shape))
        if size > len(self._logits):
            self._logits = np.empty(size, dtype=port.type)
        found = self._logits[:size].reshape(shape)
        binding.bind_output(port.name, CPU, 0, port.type, shape, found.ctypes.data)
        return found
