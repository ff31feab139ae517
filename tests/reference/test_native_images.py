"""A text with an image in it on the native executor, against libllama with libmtmd: every kind of projector."""

from __future__ import annotations

import ctypes
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker.backends.llama import LlamaBackend, LlamaOptions
from stoker.backends.llama.native import library
from stoker.backends.llama.projector import MtmdProjector
from stoker.backends.row_maker import Pixels, Rows
from stoker.core.batch import Batch, Chunk, CopyPrefix, Truncate
from stoker.core.media import PlacedSpan, Span
from stoker.core.params import BUILT_IN
from stoker.core.request import Request
from stoker.core.sequence import Sequence
from tests.projector_files import write_projector
from tests.reference.native_runs import libllama_model, open_native
from tests.tiny_models import TinyModel, write_tiny_model

BEFORE, BEHIND = [5, 6, 7, 8, 9], [10, 11, 12, 13, 14, 15]
MODELS = {
    "mlp": TinyModel(type="F32"),
    "idefics3": TinyModel(type="F32"),
    "gemma3": TinyModel(
        architecture="gemma3", type="F32", num_layers=2, keys={"attention.sliding_window": 8}, has_head=False
    ),
    "qwen2vl_merger": TinyModel(architecture="qwen2vl", type="F32"),
}
SIZES = {"mlp": (28, 28), "idefics3": (112, 112), "gemma3": (112, 112), "qwen2vl_merger": (168, 112)}


@pytest.mark.parametrize("kind", list(MODELS))
def test_logits_behind_an_image_are_those_of_libllama(kind: str, tmp_path: Path):
    path = write_tiny_model(tmp_path / "m.gguf", MODELS[kind])
    with open_native(path, max_batch_tokens=256) as backend:
        projector = MtmdProjector(path, write_projector(tmp_path / "mm.gguf", backend.row_width, kind=kind), threads=1)
        width, height = SIZES[kind]
        data = np.random.default_rng(1).integers(0, 256, 3 * width * height, dtype=np.uint8).tobytes()
        pixels = Pixels("image", width, height, data)
        part = next(part for part in projector.layout(pixels) if isinstance(part, Rows))
        assert part.is_whole == (kind == "gemma3")
        assert (part.grid is not None) == (kind == "qwen2vl_merger")
        rows = projector.encode(pixels, 0, b"key")
        assert rows.shape == (part.length, backend.row_width)
        assert part.length > 3
        expected = libllama_rows(path, projector, pixels, rows)
        projector.close()
        span = Span(b"key", part.length, "image", part.grid, part.is_whole)
        backend.hold_rows(b"key", rows)
        found = backend.forward(Batch(0, (chunk_of(span),)))
    scale = np.abs(expected).max()
    assert np.abs(found - expected).max() < 0.02 * scale


def test_rows_that_a_model_rotates_by_their_places_are_computed_by_libllama_too(tmp_path: Path):
    path = write_tiny_model(tmp_path / "m.gguf", MODELS["qwen2vl_merger"])
    options = LlamaOptions(context_size=256, kv_tokens=512, threads=1, rotates_by_places=True)
    with LlamaBackend(path, options) as backend:
        assert (backend.info.traits.can_truncate, backend.info.traits.copies_whole) == (False, True)
        mmproj = write_projector(tmp_path / "mm.gguf", backend.row_width, kind="qwen2vl_merger")
        projector = MtmdProjector(path, mmproj, threads=1)
        width, height = SIZES["qwen2vl_merger"]
        data = np.random.default_rng(1).integers(0, 256, 3 * width * height, dtype=np.uint8).tobytes()
        pixels = Pixels("image", width, height, data)
        part = next(part for part in projector.layout(pixels) if isinstance(part, Rows))
        rows = projector.encode(pixels, 0, b"key")
        expected = libllama_rows(path, projector, pixels, rows)
        projector.close()
        span = Span(b"key", part.length, "image", part.grid)
        assert span.num_positions < span.length
        backend.hold_rows(b"key", rows)
        whole = chunk_of(span)
        end, behind = len(whole.entries), len(BEFORE) + span.length
        alone = backend.forward(Batch(0, (whole,))).copy()
        beside = Chunk(3, 0, (20, 30, 40), 3)
        text = backend.forward(Batch(1, (beside,))).copy()
        together = backend.forward(Batch(2, (whole._replace(slot=2), beside), ops=(Truncate(3, 0),))).copy()
        starts = [0, 3, len(BEFORE) + 2, len(BEFORE) + span.length // 2, behind, end - 1]
        cut = [backend.forward(Batch(3, (chunk,))).copy() for chunk in in_parts(span, 5, starts)]
        # What a slot holds is copied, and taken out and put back, before it goes on.
        front = in_parts(span, 6, [0, end - 2])
        backend.forward(Batch(4, (front[0],)))
        copied = backend.forward(Batch(5, (front[1]._replace(slot=7),), ops=(CopyPrefix(6, 7, end - 2),))).copy()
        state = backend.export_kv(6, 0, end - 2)
        backend.forward(Batch(6, (), ops=(Truncate(6, 0),)))
        backend.import_kv(6, 0, end - 2, state)
        assert len(backend.export_kv(6, 0, end - 2)) == len(state)
        restored = backend.forward(Batch(7, (front[1],))).copy()
    scale = np.abs(expected).max()
    for found in (alone, together[:-3], np.concatenate(cut)[-len(BEHIND) :]):
        assert np.abs(found - expected).max() < 0.02 * scale
    for found in (copied, restored):
        assert np.abs(found - expected[-2:]).max() < 0.02 * scale
    assert np.abs(together[-3:] - text).max() < 0.02 * scale


@pytest.mark.parametrize("kind", ["mlp", "idefics3", "gemma3"])
def test_libllama_computes_rows_among_the_chunks_of_other_sequences(kind: str, tmp_path: Path):
    path = write_tiny_model(tmp_path / "m.gguf", MODELS[kind])
    whole_rows = 64 if kind == "gemma3" else 0
    with LlamaBackend(path, LlamaOptions(context_size=256, kv_tokens=512, threads=1, whole_rows=whole_rows)) as backend:
        projector = MtmdProjector(path, write_projector(tmp_path / "mm.gguf", backend.row_width, kind=kind), threads=1)
        width, height = SIZES[kind]
        data = np.random.default_rng(1).integers(0, 256, 3 * width * height, dtype=np.uint8).tobytes()
        pixels = Pixels("image", width, height, data)
        part = next(part for part in projector.layout(pixels) if isinstance(part, Rows))
        rows = projector.encode(pixels, 0, b"key")
        expected = libllama_rows(path, projector, pixels, rows)
        projector.close()
        span = Span(b"key", part.length, "image", part.grid, part.is_whole)
        backend.hold_rows(b"key", rows)
        whole = chunk_of(span)
        alone = backend.forward(Batch(0, (whole,))).copy()
        beside = tuple(Chunk(slot, 0, (20 + slot, 30, 40), 3) for slot in (1, 3))
        texts = backend.forward(Batch(1, beside)).copy()
        clear = tuple(Truncate(slot, 0) for slot in range(4))
        together = backend.forward(Batch(2, (beside[0], whole._replace(slot=2), beside[1]), ops=clear)).copy()
        middle = len(BEFORE) + part.length // 2
        starts = [0, 3, *([] if part.is_whole else [middle]), len(BEFORE) + part.length, len(whole.entries) - 1]
        cut = [backend.forward(Batch(3, (chunk,))).copy() for chunk in in_parts(span, 5, starts)]
        _, later = in_parts(span, 5, [0, middle])  # what is left of a span that is seen whole may be computed anew
        again = backend.forward(Batch(4, (later,), ops=(Truncate(5, middle),))).copy()
    scale = np.abs(expected).max()
    for found in (alone, together[3:-3], np.concatenate(cut)[-len(BEHIND) :], again[-len(BEHIND) :]):
        assert np.abs(found - expected).max() < 0.02 * scale
    assert np.abs(np.concatenate([together[:3], together[-3:]]) - texts).max() < 0.02 * scale


def in_parts(span: Span, slot: int, starts: list[int]) -> list[Chunk]:
    """The entries of `chunk_of` in several chunks that begin at these places, with logits for each entry."""
    sequence = sequence_of(span)
    entries = sequence.request.prompt
    return [
        Chunk(
            slot,
            start,
            entries[start:end],
            end - start,
            (),
            sequence.row_pieces(start, end),
            sequence.shift_at(start),
        )
        for start, end in pairwise([*starts, len(entries)])
    ]


def sequence_of(span: Span) -> Sequence:
    entries = (*BEFORE, *span.entries(), *BEHIND)
    spans = (PlacedSpan(len(BEFORE), span),)
    return Sequence(Request(request_id="r", prompt=entries, sampling=BUILT_IN, spans=spans))


def chunk_of(span: Span) -> Chunk:
    sequence = sequence_of(span)
    entries = sequence.request.prompt
    return Chunk(0, 0, entries, len(BEHIND), (), sequence.row_pieces(0, len(entries)))


def libllama_rows(path: Path, projector: MtmdProjector, pixels: Pixels, rows: NDArray[np.float32]) -> NDArray[Any]:
    """Of the tokens behind the image."""
    lib, mtmd = library(), projector._mtmd
    with libllama_model(path) as model:
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 256
        params.n_threads = params.n_threads_batch = 1
        context = lib.llama_init_from_model(model, params)
        before = (ctypes.c_int32 * len(BEFORE))(*BEFORE)  # libllama keeps no copy
        assert lib.llama_decode(context, lib.llama_batch_get_one(before, len(BEFORE))) == 0
        chunks = projector._tokenize(pixels)
        image = next(chunk for chunk in projector._each(chunks) if mtmd.mtmd_input_chunk_get_type(chunk) == 1)
        behind, no_callback = ctypes.c_int32(), mtmd.mtmd_helper_post_decode_callback()
        values = np.ascontiguousarray(rows).ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        decoded = mtmd.mtmd_helper_decode_image_chunk(
            projector._context, context, image, values, len(BEFORE), 0, 256, ctypes.byref(behind), no_callback, None
        )
        assert decoded == 0
        found: list[NDArray[np.float32]] = []
        for index, token_id in enumerate(BEHIND):
            one, place = (ctypes.c_int32 * 1)(token_id), (ctypes.c_int32 * 1)(behind.value + index)
            batch = lib.llama_batch_get_one(one, 1)
            batch.pos = place  # it would go on behind the last position of a row, not of the image
            assert lib.llama_decode(context, batch) == 0
            size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
            found.append(np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (size,)).copy())
        mtmd.mtmd_input_chunks_free(chunks)
        lib.llama_free(context)
    return np.stack(found)


def test_one_step_has_room_for_the_longest_image_and_a_token_of_every_sequence(tmp_path: Path):
    path = write_tiny_model(tmp_path / "model.gguf", MODELS["gemma3"])
    with open_native(path, whole_rows=600, num_slots=4) as backend:
        assert backend.info.max_batch_tokens == 604
    with open_native(path, whole_rows=16, num_slots=4) as backend:
        assert backend.info.max_batch_tokens == 512


@pytest.mark.parametrize(
    "model",
    [
        TinyModel(architecture="qwen3vl", type="F32", num_layers=4, keys={"n_deepstack_layers": 2}),
        TinyModel(
            architecture="qwen3vlmoe", type="F32", num_layers=3, num_experts=4, seed=2, keys={"n_deepstack_layers": 2}
        ),
    ],
    ids=lambda model: model.architecture,
)
@pytest.mark.parametrize("num_behind", [1, len(BEHIND)], ids=["one row of logits", "all"])
def test_parts_of_rows_are_added_behind_the_first_layers_as_libllama_does(
    model: TinyModel, num_behind: int, tmp_path: Path
):
    """No two experts have nearly the same score for an entry here, which rounding could exchange."""
    path = write_tiny_model(tmp_path / "m.gguf", model)
    columns, lines = 3, 2
    rows = np.random.default_rng(3).standard_normal((columns * lines, 3 * model.hidden_size)).astype(np.float32)
    span = Span(b"key", len(rows), "image", (columns, lines))
    with open_native(path) as backend:
        assert backend.row_width == rows.shape[1]
        backend.hold_rows(b"key", rows)
        whole = chunk_of(span)._replace(num_logits=num_behind)
        found = backend.forward(Batch(0, (whole,))).copy()
        parts = in_parts(span, 1, [0, len(BEFORE) + 1, len(BEFORE) + 2])  # one row of the image alone
        cut = np.concatenate([backend.forward(Batch(1, (part,))).copy() for part in parts])
        plain = rows.copy()
        plain[:, model.hidden_size :] = 0
        backend.drop_rows(b"key")
        backend.hold_rows(b"key", plain)
        without = backend.forward(Batch(2, (whole._replace(slot=2),))).copy()
    expected = libllama_deep_rows(path, rows, (columns, lines))[-num_behind:]
    scale = np.abs(expected).max()
    with LlamaBackend(path, LlamaOptions(context_size=256, kv_tokens=512, threads=1, rotates_by_places=True)) as llama:
        llama.hold_rows(b"key", rows)
        assert np.abs(llama.forward(Batch(0, (whole,))) - expected).max() < 0.02 * scale
    assert np.abs(found - expected).max() < 0.02 * scale
    assert np.array_equal(cut[-num_behind:], found)
    assert np.abs(without - expected).max() > 0.02 * scale, "the parts change something"


def libllama_deep_rows(path: Path, rows: NDArray[np.float32], grid: tuple[int, int]) -> NDArray[Any]:
    """Logits of the tokens behind an image of these rows."""
    lib = library()
    first, after = len(BEFORE), len(BEFORE) + max(grid)
    with libllama_model(path) as model:
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = 256
        params.n_threads = params.n_threads_batch = 1
        context = lib.llama_init_from_model(model, params)
        before = (ctypes.c_int32 * len(BEFORE))(*BEFORE)
        assert lib.llama_decode(context, lib.llama_batch_get_one(before, len(BEFORE))) == 0
        batch = lib.llama_batch_init(4 * len(rows), rows.shape[1], 1)  # with room for four positions of each row
        index = np.arange(len(rows))
        places = np.stack([0 * index + first, first + index // grid[0], first + index % grid[0], 0 * index])
        ctypes.memmove(batch.pos, np.ascontiguousarray(places, dtype=np.int32).ctypes.data, 4 * places.size)
        batch.n_tokens = len(rows)
        ctypes.memmove(batch.embd, np.ascontiguousarray(rows).ctypes.data, rows.nbytes)
        for row in range(len(rows)):
            batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, 0, 0
        assert lib.llama_decode(context, batch) == 0
        lib.llama_batch_free(batch)
        found: list[NDArray[np.float32]] = []
        size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
        for offset, token_id in enumerate(BEHIND):
            one, place = (ctypes.c_int32 * 1)(token_id), (ctypes.c_int32 * 1)(after + offset)
            text = lib.llama_batch_get_one(one, 1)
            text.pos = place
            assert lib.llama_decode(context, text) == 0
            found.append(np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (size,)).copy())
        lib.llama_free(context)
    return np.stack(found)


def test_the_tokens_of_an_image_are_limited_where_its_size_decides(tmp_path: Path):
    path = write_tiny_model(tmp_path / "m.gguf", MODELS["qwen2vl_merger"])
    projector = write_projector(tmp_path / "mm.gguf", 64, kind="qwen2vl_merger")
    lengths: list[int] = []
    for limits in ((0, 0), (0, 8), (50, 200)):
        opened = MtmdProjector(path, projector, threads=1, token_limits=limits)
        lengths += [part.length for part in opened.layout(Pixels("image", 168, 112)) if isinstance(part, Rows)]
        opened.close()
    usual, few, many = lengths
    assert few <= 8 < usual < 50 <= many <= 200
