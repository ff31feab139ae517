"""Every way that graphs hold KV, against float64: chunks, lengths side by side, copies, cuts, export and import."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from stoker.backends.onnx import OnnxBackend
from stoker.backends.onnx.growing import GrowingKV
from stoker.backends.onnx.kv import Rows
from stoker.backends.onnx.memory import GRANULE
from stoker.core.batch import Batch, Chunk, CopyPrefix, Truncate
from stoker.core.media import RowPiece, Span
from stoker.core.stages import Stage
from stoker.errors import BackendError, ConfigError, ModelNotLoaded
from tests.onnx_models import OnnxReference, TinyOnnx
from tests.onnx_runs import distance, open_tiny, run

LIMITS = {"float32": 3e-6, "float16": 3e-3}
MODELS = {
    "fused": TinyOnnx(),
    "fused, windows": TinyOnnx(window=20),
    "fused, half": TinyOnnx(kv_type="float16"),
    "fused, last row": TinyOnnx(rows="last"),
    "fused, rows as told": TinyOnnx(rows="kept"),
    "plain": TinyOnnx(attention="plain"),
    "plain, windows": TinyOnnx(attention="plain", window=20),
    "plain, half": TinyOnnx(attention="plain", kv_type="float16"),
    "plain, last row": TinyOnnx(attention="plain", rows="last"),
    "external weights": TinyOnnx(external=True),
    "fused, takes rows": TinyOnnx(takes_rows=True),
    "plain, takes rows": TinyOnnx(takes_rows=True, attention="plain", rows="last"),
    "positions of three axes": TinyOnnx(takes_rows=True, attention="plain", has_axes=True),
}


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[OnnxBackend, OnnxReference]]:
    model = MODELS[request.param]
    with open_tiny(tmp_path, model) as backend:
        yield backend, OnnxReference(model, tmp_path / "model.onnx")


def texts(*lengths: int) -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [rng.integers(0, 256, length).tolist() for length in lengths]


def test_chunks_and_lengths_side_by_side(case: tuple[OnnxBackend, OnnxReference]) -> None:
    backend, reference = case
    limit = LIMITS[reference.model.kv_type]
    a, b = texts(60, 40)
    of_a, of_b = reference.logits(a), reference.logits(b)
    assert distance(run(backend, Chunk(0, 0, tuple(a[:30]), 3)), of_a[27:30]) < limit
    assert distance(run(backend, Chunk(3, 0, tuple(b[:20]), 1)), of_b[19:20]) < limit
    rows = run(backend, Chunk(3, 20, (b[20],), 1), Chunk(0, 30, tuple(a[30:50]), 2))
    assert distance(rows, [of_b[20], *of_a[48:50]]) < limit
    for at in range(4):
        rows = run(backend, Chunk(0, 50 + at, (a[50 + at],), 1), Chunk(3, 21 + at, (b[21 + at],), 1))
        assert distance(rows, [of_a[50 + at], of_b[21 + at]]) < limit
    rows = run(backend, Chunk(3, 25, (b[25],), 0), Chunk(1, 0, (a[0],), 1))
    assert distance(rows, of_a[:1]) < limit


def test_copies_cuts_and_transfers(case: tuple[OnnxBackend, OnnxReference]) -> None:
    backend, reference = case
    limit = LIMITS[reference.model.kv_type]
    a, b = texts(60, 40)
    of_a, of_b = reference.logits(a), reference.logits(b)
    run(backend, Chunk(0, 0, tuple(a[:50])), Chunk(2, 0, tuple(b[:30])))
    run(backend, Chunk(0, 50, (a[50],)), Chunk(2, 30, (b[30],)))
    copies = [CopyPrefix(0, 5, 40), Truncate(2, 25)]
    rows = run(backend, Chunk(5, 40, (a[40],), 1), Chunk(2, 25, (b[25],), 1), Chunk(0, 51, (a[51],), 1), ops=copies)
    assert distance(rows, [of_a[40], of_b[25], of_a[51]]) < limit
    state = [backend.export_kv(0, start, end) for start, end in ((0, 32), (32, 50))]
    backend.import_kv(1, 0, 32, state[0])
    backend.import_kv(1, 32, 50, memoryview(state[1]))
    rows = run(backend, Chunk(1, 50, (a[50],), 1), Chunk(5, 41, (a[41],), 1))
    assert distance(rows, [of_a[50], of_a[41]]) < limit
    run(backend, ops=[Truncate(slot, 0) for slot in range(6)])
    assert distance(run(backend, Chunk(0, 0, tuple(b), 1)), of_b[-1:]) < limit


def test_rows_come_in_the_order_of_the_chunks(case: tuple[OnnxBackend, OnnxReference]) -> None:
    """Whatever the order of their slots, and after one has left and come back."""
    backend, reference = case
    limit = LIMITS[reference.model.kv_type]
    prompts = texts(30, 20, 25, 28)
    expected = [reference.logits(prompt) for prompt in prompts]
    for slot, prompt in enumerate(prompts):
        run(backend, Chunk(slot, 0, tuple(prompt[:10])))
    for at, slots in enumerate(([2, 0, 3, 1], [3, 1, 2, 0], [1, 3, 0], [3, 0, 1], [1, 2, 3, 0])):
        starts = {slot: 10 + at - (slot == 2 and at > 3) * 2 for slot in slots}
        rows = run(backend, *(Chunk(slot, starts[slot], (prompts[slot][starts[slot]],), 1) for slot in slots))
        assert distance(rows, [expected[slot][starts[slot]] for slot in slots]) < limit


def test_kv_of_a_fused_graph_is_never_moved_by_a_step(tmp_path: Path) -> None:
    """Bound to the same places from one step to the next; nothing is read from or written to where others are."""
    with open_tiny(tmp_path, TinyOnnx()) as backend:
        assert backend.is_in_place
        [a] = texts(60)
        run(backend, Chunk(0, 0, tuple(a[:20])), Chunk(1, 0, tuple(a[:30])), Chunk(2, 0, tuple(a[:40])))
        run(backend, Chunk(0, 20, (1,)), Chunk(1, 30, (1,)))
        before = backend.export_kv(2, 0, 40)
        moved: list[tuple[int, int]] = []
        swap = backend._memory.swap
        backend._kv._rows._swap = lambda one, other: (moved.append((one, other)), swap(one, other))[1]  # type: ignore
        for at in range(5):
            run(backend, Chunk(0, 21 + at, (1,)), Chunk(1, 31 + at, (1,)))
        assert moved == []
        assert backend.export_kv(2, 0, 40) == before
        run(backend, Chunk(0, 26, (1,)), Chunk(2, 40, (1,)))  # 1 has left from between them
        assert len(moved) == 1


def test_a_plain_graph_goes_on_with_what_it_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gathered: list[tuple[int, ...]] = []
    gather = GrowingKV._gather
    monkeypatch.setattr(
        GrowingKV, "_gather", lambda self, slots, *a: (gathered.append(slots), gather(self, slots, *a))[1]
    )
    with open_tiny(tmp_path, TinyOnnx(attention="plain")) as backend:
        run(backend, Chunk(0, 0, (1, 2, 3)), Chunk(1, 0, (4, 5)))
        for at in range(4):
            run(backend, Chunk(1, 2 + at, (7,), 1), Chunk(0, 3 + at, (7,), 1))
        backend.export_kv(0, 0, 5)
        run(backend, Chunk(0, 7, (7,), 1), Chunk(1, 6, (7,), 1))
    assert gathered == [(0,), (1,), (0, 1)]


def test_a_fused_graph_on_a_device_holds_its_kv_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of another device cannot be bound in part: they grow, as a plain graph's do."""
    model = TinyOnnx(window=20)
    monkeypatch.setattr("stoker.backends.onnx.backend.is_host_memory", lambda _: False)
    with open_tiny(tmp_path, model) as backend:
        assert not backend.is_in_place
        test_chunks_and_lengths_side_by_side((backend, OnnxReference(model, tmp_path / "model.onnx")))


def test_padding_is_bounded_if_somebody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[list[int]] = []
    compute = GrowingKV.compute

    def noted(kv: GrowingKV, chunks: Sequence[Chunk], num_logits: int) -> Rows:
        groups.append([chunk.slot for chunk in chunks])
        return compute(kv, chunks, num_logits)

    monkeypatch.setattr(GrowingKV, "compute", noted)
    with open_tiny(tmp_path, TinyOnnx(attention="plain"), max_paddings=10) as backend:
        run(backend, *(Chunk(slot, 0, tuple(range(2 + 8 * slot))) for slot in range(4)))
        groups.clear()
        run(backend, *(Chunk(slot, 2 + 8 * slot, (1,), 1) for slot in range(4)))
    assert groups == [[3, 2], [1, 0]]


@pytest.mark.parametrize("attention", ["fused", "plain"])
def test_it_is_told_where_the_time_of_a_step_goes(tmp_path: Path, attention: Literal["fused", "plain"]) -> None:
    marks: list[Stage] = []
    with open_tiny(tmp_path, TinyOnnx(attention=attention), mark=marks.append) as backend:
        run(backend, Chunk(0, 0, (1, 2, 3)), Chunk(1, 0, (4, 5)))
        assert marks == ["bind", "forward"] * 2
        run(backend, Chunk(0, 3, (1,), 1), Chunk(1, 2, (4,), 1), Chunk(2, 0, (4, 5)))
        assert marks == ["bind", "forward"] * 4, "single tokens are computed in one run"


def test_logits_always_lie_in_the_same_memory(tmp_path: Path) -> None:
    """New pages for each step cost as much as filling them."""
    with open_tiny(tmp_path, TinyOnnx()) as backend:
        first = backend.forward(Batch(0, (Chunk(0, 0, (1, 2, 3), 2),)))
        second = backend.forward(Batch(1, (Chunk(0, 3, (1,), 1),)))
        assert np.shares_memory(first, second)


def test_a_failed_pass_leaves_every_slot_as_it_was(tmp_path: Path) -> None:
    """Beyond the tables of its rotations a graph fails; what was computed before it in the same step is undone."""
    model = TinyOnnx(context=64)
    with open_tiny(tmp_path, model) as backend:
        [a] = texts(80)
        run(backend, Chunk(0, 0, tuple(a[:10])))
        with pytest.raises(BackendError, match=r"the forward pass failed: .*cos_cache"):
            run(backend, Chunk(0, 10, (a[10], a[11]), 1), Chunk(1, 0, tuple(a)))
        reference = OnnxReference(model, tmp_path / "model.onnx").logits(a[:12])
        assert distance(run(backend, Chunk(0, 10, (a[10], a[11]), 1)), reference[-1:]) < 1e-5


def test_bytes_of_something_else_are_refused(tmp_path: Path) -> None:
    with open_tiny(tmp_path, TinyOnnx()) as backend:
        run(backend, Chunk(0, 0, (1, 2, 3, 4)))
        state = bytes(backend.export_kv(0, 0, 4))
        for wrong in (state[:-1], state + b"x", b""):
            with pytest.raises(BackendError, match=f"{len(wrong)} bytes are not the KV of the positions 0 … 3"):
                backend.import_kv(1, 0, 4, wrong)
        backend.import_kv(1, 0, 4, state)


def test_memory_of_what_is_gone_is_given_back(tmp_path: Path) -> None:
    with open_tiny(tmp_path, TinyOnnx(), kv_tokens=200, num_slots=4) as backend:
        for slot in range(4):
            run(backend, Chunk(slot, 0, tuple(range(190))))
            run(backend, ops=[Truncate(slot, 0)])
        assert backend._memory.num_touched <= 200 + 4 * GRANULE


def test_closing_ends_everything(tmp_path: Path) -> None:
    backend = open_tiny(tmp_path, TinyOnnx())
    backend.close()
    backend.close()
    with pytest.raises(ModelNotLoaded):
        run(backend, Chunk(0, 0, (1,), 1))


def test_users_in_one_process_share_a_session(tmp_path: Path) -> None:
    with open_tiny(tmp_path, TinyOnnx()) as one, open_backend_again(tmp_path) as other:
        assert one._session is other._session
        run(one, Chunk(0, 0, (1, 2, 3)))
        assert distance(run(other, Chunk(0, 0, (1, 2, 3), 1)), run(one, Chunk(1, 0, (1, 2, 3), 1))) == 0


def open_backend_again(folder: Path) -> OnnxBackend:
    from tests.onnx_runs import open_backend

    return open_backend(folder / "model.onnx")


def test_numbers_out_of_range_are_named(tmp_path: Path) -> None:
    for name, value in (("context_size", 0), ("kv_tokens", 0), ("threads", 0), ("threads", 513)):
        with pytest.raises(ConfigError, match=f"`{name}` must be"):
            open_tiny(tmp_path, TinyOnnx(), **{name: value})


def test_rows_of_images_are_computed_beside_tokens_however_chunks_are_cut(tmp_path: Path) -> None:
    """A graph with positions of three axes, against float64: the rows of an image of 3 × 2, and text behind it."""
    model = TinyOnnx(takes_rows=True, attention="plain", has_axes=True)
    span = Span(b"image", 6, grid=(3, 2))
    rows = np.random.default_rng(3).standard_normal((6, model.hidden)).astype(np.float32)
    (text,) = texts(20)
    entries = (*text[:5], *span.entries(), *text[5:])
    image = [[5] * 6, [5, 5, 5, 6, 6, 6], [5, 6, 7, 5, 6, 7]]
    positions = [[*range(5), *axis, *range(8, 23)] for axis in image]
    with open_tiny(tmp_path, model) as backend:
        backend.hold_rows(span.key, rows)
        reference = OnnxReference(model, tmp_path / "model.onnx")
        expected = reference.logits(list(entries), rows=rows, positions=np.array(positions))
        for slot, ends in enumerate([(26,), (7, 26), (5, 9, 10, 11, 20, 26), tuple(range(1, 27))]):
            start = 0
            for end in ends:
                first, last = max(start - 5, 0), min(end - 5, 6)
                pieces = [RowPiece(max(5, start) - start, first, last - first, span, 5)] if first < last else []
                shift = -3 if start >= 11 else 0
                found = run(backend, Chunk(slot, start, entries[start:end], end - start, (), tuple(pieces), shift))
                assert distance(found, expected[start:end]) < LIMITS["float32"]
                start = end


def test_logits_of_the_last_entries_are_those_of_the_right_rows(tmp_path: Path) -> None:
    """A graph that gives one row of logits a run: a chunk with an image is computed in parts."""
    model = TinyOnnx(takes_rows=True, attention="plain", has_axes=True, rows="last")
    span = Span(b"image", 4, grid=(2, 2))
    rows = np.random.default_rng(3).standard_normal((4, model.hidden)).astype(np.float32)
    entries = (1, 2, *span.entries(), 3, 4)
    positions = np.array([[0, 1, 2, 2, 2, 2, 4, 5], [0, 1, 2, 2, 3, 3, 4, 5], [0, 1, 2, 3, 2, 3, 4, 5]])
    with open_tiny(tmp_path, model) as backend:
        backend.hold_rows(span.key, rows)
        found = run(backend, Chunk(0, 0, entries, 5, (), (RowPiece(2, 0, 4, span, 2),)))
        reference = OnnxReference(model, tmp_path / "model.onnx")
        assert distance(found, reference.logits(list(entries), rows=rows, positions=positions)[3:]) < LIMITS["float32"]
