"""Rows of images in place of tokens: the same bits as tokens with these embeddings, and float64's numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from stoker.backends.native import NativeBackend
from stoker.core.batch import Batch, Chunk, Truncate
from stoker.core.media import PlacedSpan, Span
from stoker.core.params import BUILT_IN
from stoker.core.request import Request
from stoker.core.sequence import Sequence
from tests.reference.native_reference import NativeReference
from tests.reference.native_runs import Rows, all_rows, open_native
from tests.tiny_models import TinyModel, write_tiny_model

LENGTH = 90
SPANS = (PlacedSpan(7, Span(b"one", 30)), PlacedSpan(40, Span(b"two", 4)), PlacedSpan(44, Span(b"one", 30)))
"""The second one is followed by the first image again."""
GRIDS = (PlacedSpan(7, Span(b"one", 30, grid=(6, 5))), PlacedSpan(40, Span(b"two", 4, grid=(2, 2))))
SHAPE = {"hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "head_size": 16}
WINDOWED = {"attention.sliding_window": 20}
MODELS = {
    "llama": TinyModel(type="F32", **SHAPE),  # type: ignore[arg-type]
    "gemma3": TinyModel(architecture="gemma3", type="F32", num_layers=2, keys=WINDOWED, has_head=False),
    "granite": TinyModel(architecture="granite", type="F32"),
    "qwen2vl": TinyModel(architecture="qwen2vl", type="F32"),
    "qwen3vl": TinyModel(architecture="qwen3vl", type="F32", has_head=False),
}


@dataclass
class Opened:
    """A model with tokens and the rows that are their embeddings."""

    path: Path
    name: str
    backend: NativeBackend
    token_ids: list[int]
    embeddings: Rows
    """As the first layer gets them, `(LENGTH, hidden_size)`."""

    def hold(self, spans: tuple[PlacedSpan, ...]) -> None:
        """Gives the backend what the tokens in the places of the spans would be."""
        for start, span in reversed(spans):
            self.backend.hold_rows(span.key, self.embeddings[start : start + span.length].astype(np.float32))

    def chunk(self, spans: tuple[PlacedSpan, ...], start: int, end: int, slot: int = 0) -> Chunk:
        entries = list(self.token_ids)
        for begin, span in spans:
            entries[begin : begin + span.length] = span.entries()
        request = Request(request_id="r", prompt=tuple(entries), sampling=BUILT_IN, spans=spans)
        sequence = Sequence(request)
        rows, shift = sequence.row_pieces(start, end), sequence.shift_at(start)
        return Chunk(slot, start, tuple(entries[start:end]), end - start, (), rows, shift)

    def logits(self, spans: tuple[PlacedSpan, ...], *borders: int, slot: int = 0) -> Rows:
        """Of all places, computed in chunks that end at these borders; afterwards the slot is empty."""
        self.hold(spans)
        edges = [0, *borders, LENGTH]
        pairs = pairwise(edges)
        rows = [self.backend.forward(Batch(0, (self.chunk(spans, *pair, slot),))).copy() for pair in pairs]
        self.empty(slot)
        return np.concatenate(rows)

    def empty(self, slot: int = 0) -> None:
        self.backend.forward(Batch(0, (), (Truncate(slot, 0),)))


@pytest.fixture(scope="module", params=list(MODELS))
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    path = write_tiny_model(tmp_path_factory.mktemp("rows") / "m.gguf", MODELS[request.param])
    rng = np.random.default_rng(3)
    token_ids = rng.integers(0, 250, LENGTH).tolist()
    token_ids[44:74] = token_ids[7:37]
    tensor = next(t for t in GGUFReader(path).tensors if t.name == "token_embd.weight")
    embeddings = dequantize(tensor.data[token_ids], tensor.tensor_type)
    if request.param == "gemma3":  # which scales embeddings, and no rows
        embeddings = embeddings * np.float32(np.sqrt(embeddings.shape[1]))
    with open_native(path, max_batch_tokens=LENGTH) as backend:
        yield Opened(path, request.param, backend, token_ids, embeddings)


@pytest.mark.parametrize("borders", [(), (7,), (20,), (40, 44), (41, 50, 60), tuple(range(1, LENGTH))], ids=str)
def test_rows_that_are_embeddings_give_what_the_tokens_give_to_the_bit(opened: Opened, borders: tuple[int, ...]):
    expected = all_rows(opened.backend, opened.token_ids)
    opened.empty()
    np.testing.assert_array_equal(opened.logits(SPANS, *borders), expected)


def test_the_rows_of_one_sequence_are_not_those_of_another(opened: Opened):
    alone = opened.logits(SPANS)
    other = (PlacedSpan(3, Span(b"other", 20)),)
    opened.hold(SPANS)
    opened.backend.hold_rows(b"other", np.full((20, opened.embeddings.shape[1]), 0.5, dtype=np.float32))
    half = LENGTH // 2
    for start, end in ((0, half), (half, LENGTH)):
        chunks = (opened.chunk(other, start // 3, end // 3, slot=2), opened.chunk(SPANS, start, end, slot=1))
        rows = opened.backend.forward(Batch(0, chunks))
        np.testing.assert_array_equal(rows[-(end - start) :], alone[start:end])
    opened.empty(1)
    opened.empty(2)


def whole(spans: tuple[PlacedSpan, ...]) -> tuple[PlacedSpan, ...]:
    return tuple(
        PlacedSpan(start, Span(span.key + b" whole", span.length, grid=span.grid, is_whole=True))
        for start, span in spans
    )


@pytest.mark.parametrize("borders", [(7,), (3, 20, 37), (5, 38, 44)], ids=str)
def test_a_span_that_is_seen_whole_gives_the_same_wherever_a_chunk_begins(opened: Opened, borders: tuple[int, ...]):
    """A chunk may begin inside such a span when the rows before it were computed with all of them in view."""
    spans = whole(SPANS)
    alone = opened.logits(spans)
    opened.hold(spans)
    opened.backend.forward(Batch(0, (opened.chunk(spans, 0, LENGTH),)))
    for border in borders:
        opened.backend.forward(Batch(0, (), (Truncate(0, border),)))
        rows = opened.backend.forward(Batch(0, (opened.chunk(spans, border, LENGTH),)))
        np.testing.assert_array_equal(rows, alone[border:])
    opened.empty()


@pytest.mark.parametrize("kind", ["causal", "whole", "grid"])
def test_numbers_are_those_of_float64(opened: Opened, kind: str):
    spans = {"causal": SPANS, "whole": whole(SPANS), "grid": GRIDS}[kind]
    if kind == "grid" and not opened.name.endswith("vl"):
        pytest.skip("its rotation has no axes")
    rng = np.random.default_rng(5)
    reference = NativeReference(opened.path)
    opened.hold(spans)
    for _, span in reversed(spans):
        rows = rng.standard_normal((span.length, opened.embeddings.shape[1])).astype(np.float32)
        opened.backend.hold_rows(span.key, rows)
    for start, span in spans:
        rows = opened.backend._input.rows._rows[span.key]  # the first image stands there twice
        reference.rows |= {start + i: row.astype(np.float64) for i, row in enumerate(rows)}
        if span.is_whole:
            reference.sees_to |= dict.fromkeys(range(start, start + span.length), start + span.length)
    if kind == "grid":
        reference.positions = positions(spans)
    found = opened.backend.forward(Batch(0, (opened.chunk(spans, 0, LENGTH),))).copy()
    opened.empty()
    expected = reference.logits(opened.token_ids)
    scale = np.abs(expected).max()
    assert np.abs(found - expected).max() < 0.02 * scale
    if kind == "grid":
        reference.positions = None
        assert np.abs(found - reference.logits(opened.token_ids)).max() > 0.04 * scale, "the places in the image count"


def positions(spans: tuple[PlacedSpan, ...]) -> np.ndarray:
    """Slow and obvious: one place after the other."""
    found: list[tuple[int, int, int]] = []
    now = 0
    inside = {start + i: (span, i) for start, span in spans for i in range(span.length)}
    for place in range(LENGTH):
        if place not in inside:
            found.append((now, now, now))
            now += 1
            continue
        span, index = inside[place]
        assert span.grid is not None
        columns, rows = span.grid
        found.append((now, now + index // columns, now + index % columns))
        if index == span.length - 1:
            now += max(columns, rows)
    return np.array(found, dtype=np.float64)
