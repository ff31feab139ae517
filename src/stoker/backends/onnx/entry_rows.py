"""Input embeddings for decoders of vision models: of tokens, from the graph `embed_tokens`, and rows of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from stoker.backends.held_rows import HeldRows
from stoker.backends.onnx.file import GraphFile, GraphValue
from stoker.backends.onnx.runtime import CPU, SessionOptions, open_session
from stoker.core.batch import Chunk
from stoker.errors import ModelUnsupported

_INPUT = "input_ids"
_ANY_TOKEN = 0
"""Placeholder token id at positions that then get the row of an image."""


class EntryRows:
    """The embedding graph of one model, and the rows of images that chunks name. Only one thread uses it.

    Args:
        graph: `embed_tokens`, which returns a row for each token id.
        width: elements of a row.
        options: session options. The CPU always computes this graph, which only copies rows.

    Raises:
        ModelUnsupported: the graph has other inputs or outputs.
        ModelFileInvalid, ResourceExhausted: the graph cannot be loaded.
    """

    def __init__(self, graph: GraphFile, width: int, options: SessionOptions) -> None:
        self._output = _checked(graph, width).name
        self._session = open_session(
            graph, replace(options, provider=CPU, device_id=0, failed=(), packed_directory=None)
        )
        self._type = np.dtype(next(value for value in graph.inputs if value.name == _INPUT).type)
        self.rows = HeldRows(width)
        """Rows of images that chunks may name."""

    def of(self, chunks: Sequence[Chunk]) -> NDArray[Any]:
        """The input embeddings of chunks of equal length, `(chunks, entries, width)`."""
        ids = np.array([chunk.entries for chunk in chunks])
        tokens = np.where(ids < 0, _ANY_TOKEN, ids).astype(self._type)
        found: NDArray[Any] = self._session.inner.run([self._output], {_INPUT: tokens})[0]
        for into, chunk in zip(found, chunks, strict=True):
            for piece in chunk.rows:
                into[piece.offset : piece.offset + piece.length] = self.rows.of(piece)
        return found


def _checked(graph: GraphFile, width: int) -> GraphValue:
    """The output of `embed_tokens`, after a check of the graph's inputs and outputs."""
    if [value.name for value in graph.inputs] != [_INPUT] or len(graph.outputs) != 1:
        names = ", ".join(value.name for value in (*graph.inputs, *graph.outputs))
        _refuse(graph, f"its inputs and outputs are not `{_INPUT}` and one more, but {names}")
    output = graph.outputs[0]
    if len(output.shape) != 3 or output.shape[2] not in (width, *filter(_is_open, output.shape)):
        _refuse(graph, f"its output `{output.name}` is {list(output.shape)}, and the decoder takes rows of {width}")
    return output


def _is_open(size: int | str) -> bool:
    return isinstance(size, str)


def _refuse(graph: GraphFile, what: str) -> NoReturn:
    raise ModelUnsupported(f"{graph.path} cannot be run: {what}", path=str(graph.path))
