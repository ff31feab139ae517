"""Models with recurrent layers: their states are the same to the bit however they came about, compared with ==."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import _native
from stoker.backends.native import NativeBackend, NativeNeeds
from stoker.core.batch import Batch, Chunk, CopyPrefix, Truncate
from stoker.core.embedding import Piece
from stoker.errors import BackendError
from stoker.models.gguf import read_gguf
from tests.reference.latent_reference import LatentReference
from tests.reference.native_reference import NativeReference
from tests.reference.native_runs import Rows, all_rows, open_native, relative_error, step
from tests.tiny_models import TinyModel, write_tiny_model

LENGTH = 600
SHAPE: dict[str, Any] = {"hidden_size": 256, "feed_forward_size": 512, "num_heads": 4, "head_size": 64}
MODELS = {
    "lfm2 Q4_K": TinyModel(
        architecture="lfm2", type="Q4_K", num_layers=3, layer_heads=((4, 0), (4, 2), (4, 0)), has_head=False, **SHAPE
    ),
    "qwen35 Q8_0": TinyModel(architecture="qwen35", type="Q8_0", num_layers=4),
    "granitehybrid Q4_0": TinyModel(architecture="granitehybrid", type="Q4_0", num_layers=3),
    "nemotron_h_moe Q8_0": TinyModel(
        architecture="nemotron_h_moe", type="Q8_0", num_layers=7, num_experts=12, shared_size=64
    ),
    "jamba Q8_0": TinyModel(architecture="jamba", type="Q8_0", num_layers=3, num_experts=12, expert_size=96),
    "kimi-linear Q8_0": TinyModel(
        architecture="kimi-linear", type="Q8_0", num_layers=3, num_experts=12, num_dense=1, shared_size=32
    ),
    "mamba Q8_0": TinyModel(architecture="mamba", type="Q8_0", num_layers=3, keys={"ssm.dt_b_c_rms": True}),
    "mamba2 Q4_0": TinyModel(architecture="mamba2", type="Q4_0", num_layers=3, has_head=False),
    "falcon-h1 F16": TinyModel(architecture="falcon-h1", type="F16"),
}


@pytest.fixture(scope="module", params=list(MODELS))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "m.gguf", MODELS[request.param])


@pytest.fixture(scope="module")
def shared(path: Path) -> Iterator[NativeBackend]:
    with open_native(path) as backend:
        yield backend


@pytest.fixture
def backend(shared: NativeBackend) -> Iterator[NativeBackend]:
    yield shared
    step(shared, ops=[Truncate(slot, 0) for slot in range(shared.info.num_slots)])
    assert shared.num_used_pages == 0


@pytest.fixture(scope="module")
def token_ids() -> list[int]:
    return np.random.default_rng(7).integers(0, 256, LENGTH).tolist()


@pytest.fixture(scope="module")
def alone(shared: NativeBackend, token_ids: list[int]) -> Rows:
    rows = all_rows(shared, token_ids)
    step(shared, ops=[Truncate(0, 0)])
    return rows


@pytest.mark.parametrize("sizes", [[1, 2, 3, 5, 17], [64], [31, 1, 32, 33], [511, 1, 88], [16], [4, 12, 13]])
def test_chunks(backend: NativeBackend, token_ids: list[int], alone: Rows, sizes: list[int]) -> None:
    np.testing.assert_array_equal(all_rows(backend, token_ids, slot=3, sizes=sizes), alone)


@pytest.mark.parametrize("seed", range(3))
def test_company(backend: NativeBackend, token_ids: list[int], alone: Rows, seed: int) -> None:
    """Random ragged batches: slot 0 computes the prompt, the others anything, in any order of chunks."""
    rng = random.Random(seed)
    lengths = [0] * backend.info.num_slots
    while lengths[0] < LENGTH:
        chunks: list[Chunk] = []
        for slot in rng.sample(range(4), 4):
            size = min(rng.choice([1, 1, 2, 9, 40, 110]), (LENGTH if slot == 0 else 900) - lengths[slot])
            if size > 0:
                entries = token_ids[lengths[0] : lengths[0] + size] if slot == 0 else rng.choices(range(256), k=size)
                chunks.append(Chunk(slot, lengths[slot], tuple(entries), len(entries)))
        rows, at = step(backend, *chunks), 0
        for chunk in chunks:
            if chunk.slot == 0:
                np.testing.assert_array_equal(rows[at : at + chunk.num_logits], alone[chunk.start : chunk.end])
            at += chunk.num_logits
            lengths[chunk.slot] = chunk.end


@pytest.mark.parametrize("threads", [2, 3])
def test_threads(path: Path, token_ids: list[int], alone: Rows, threads: int) -> None:
    with open_native(path, threads=threads) as backend:
        np.testing.assert_array_equal(all_rows(backend, token_ids, sizes=[200, 1, 12]), alone)


@pytest.mark.parametrize("name", _native.kernel_names())
def test_kernels(path: Path, token_ids: list[int], alone: Rows, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_native(path) as backend:
        kv_type = backend.info.kv_format.split()[2]
    monkeypatch.setenv("STOKER_NATIVE_KERNELS", name)
    with open_native(path, kv_type=kv_type) as backend:
        count = 60 if name == "scalar" else LENGTH
        np.testing.assert_array_equal(all_rows(backend, token_ids[:count], sizes=[40, 1, 19]), alone[:count])


@pytest.mark.parametrize("length", [1, 2, 31, 33, 512, 590])
def test_a_state_goes_on_in_another_slot(
    backend: NativeBackend, token_ids: list[int], alone: Rows, length: int
) -> None:
    step(backend, Chunk(0, 0, tuple(token_ids[: min(length, 512)])))
    if length > 512:
        step(backend, Chunk(0, 512, tuple(token_ids[512:length])))
    state = backend.export_kv(0, 0, length)
    step(backend, Chunk(0, length, (1, 2, 3)), ops=[])  # what follows in the old slot does not show
    step(backend, Chunk(5, 0, (4, 5, 6)))
    step(backend, ops=[Truncate(5, 0)])
    backend.import_kv(5, 0, length, state)
    rest = tuple(token_ids[length : length + 10])
    np.testing.assert_array_equal(step(backend, Chunk(5, length, rest, len(rest))), alone[length : length + 10])


@pytest.mark.parametrize("length", [20, 64, 65, 590])
def test_blocks_come_apart_from_the_state(
    backend: NativeBackend, token_ids: list[int], alone: Rows, length: int
) -> None:
    """Blocks of a slot that has gone on meanwhile, and the state of the moment with the part of a block before it."""
    starts = range(0, length, 32)
    for start in range(0, length, 512):
        step(backend, Chunk(0, start, tuple(token_ids[start : min(start + 512, length)])))
    state = backend.export_kv(0, starts[-1], length)
    step(backend, Chunk(0, length, (1, 2, 3)))
    blocks = [backend.export_kv(0, start, start + 32, has_state=False) for start in starts[:-1]]
    info = backend.info
    assert len(state) == 32 * info.kv_bytes_per_token + info.state_bytes_per_slot // 2
    for start, block in zip(starts, blocks, strict=False):
        backend.import_kv(5, start, start + 32, block, has_state=False)
    backend.import_kv(5, starts[-1], length, state)
    rest = tuple(token_ids[length : length + 10])
    np.testing.assert_array_equal(step(backend, Chunk(5, length, rest, len(rest))), alone[length : length + 10])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("max_batch_tokens", [20, 64])
def test_drafts_are_cut_off(path: Path, token_ids: list[int], alone: Rows, seed: int, max_batch_tokens: int) -> None:
    """In any company; what was wrong is cut off before the next step, or much later, or in two goes."""
    rng = random.Random(seed)
    with open_native(path, max_batch_tokens=max_batch_tokens) as backend:
        lengths, ops = [5, 9, 14], list[Truncate]()
        step(
            backend, *(Chunk(slot, 0, tuple(token_ids[:length])) for slot, length in zip((0, 1), lengths, strict=False))
        )
        step(backend, Chunk(2, 0, tuple(token_ids[:14])))
        while min(lengths) < 120:
            chunks, rights = list[Chunk](), list[int]()
            for slot in rng.sample(range(3), rng.choice([1, 2, 3])):
                size, at = rng.randrange(1, 7), lengths[slot]
                num_right = rng.randrange(1, size + 1)
                entries = [*token_ids[at : at + num_right], *rng.choices(range(256), k=size - num_right)]
                chunks.append(Chunk(slot, at, tuple(entries), size))
                rights.append(num_right)
            rows, first = drafted(backend, chunks, ops), 0
            ops = []
            for chunk, num_right in zip(chunks, rights, strict=True):
                found = rows[first : first + num_right]
                np.testing.assert_array_equal(found, alone[chunk.start : chunk.start + num_right])
                first += chunk.num_logits
                lengths[chunk.slot] = chunk.start + num_right
                if rng.random() < 0.3 and num_right > 1:  # a stop string, say
                    ops.append(Truncate(chunk.slot, lengths[chunk.slot]))
                    lengths[chunk.slot] -= 1
                ops.append(Truncate(chunk.slot, lengths[chunk.slot]))


def drafted(backend: NativeBackend, chunks: list[Chunk], ops: list[Truncate]) -> Rows:
    num_drafted = sum(len(chunk.entries) - 1 for chunk in chunks)
    return backend.forward(Batch(0, tuple(chunks), tuple(ops), num_drafted=num_drafted)).copy()


def test_a_state_is_exported_before_its_draft_is_cut_off(
    backend: NativeBackend, token_ids: list[int], alone: Rows
) -> None:
    step(backend, Chunk(0, 0, tuple(token_ids[:40])))
    drafted(backend, [Chunk(0, 40, (*token_ids[40:43], 1, 2), 5)], [])
    state = backend.export_kv(0, 0, 43)
    backend.import_kv(4, 0, 43, state)
    rest = tuple(token_ids[43:50])
    for slot in (0, 4):
        rows = step(backend, Chunk(slot, 43, rest, len(rest)), ops=[Truncate(slot, 43)])
        np.testing.assert_array_equal(rows, alone[43:50])


def test_a_slot_begins_anew(backend: NativeBackend, token_ids: list[int], alone: Rows) -> None:
    """Whatever its state was, infinities among it."""
    page_and_state = backend.export_kv(*filled(backend, 2))
    step(backend, ops=[Truncate(2, 0)])
    backend.import_kv(2, 0, 20, b"\x00\x00\x80\x7f" * (len(page_and_state) // 4))
    step(backend, ops=[Truncate(2, 0)])
    np.testing.assert_array_equal(all_rows(backend, token_ids[:40], slot=2, sizes=[3]), alone[:40])


def test_a_copy_goes_on_as_what_it_was_copied_from(backend: NativeBackend, token_ids: list[int], alone: Rows) -> None:
    """The state is copied, pages are shared; source and copy go on without seeing each other."""
    step(backend, ops=[Truncate(slot, 0) for slot in (1, 2)])
    all_rows(backend, token_ids[:20], slot=1, sizes=[7])
    other = [token_ids[-1], *token_ids[:9]]
    step(backend, Chunk(1, 20, tuple(other)), ops=[CopyPrefix(1, 2, 20)])
    rest = tuple(token_ids[20:40])
    np.testing.assert_array_equal(step(backend, Chunk(2, 20, rest, len(rest))), alone[20:40])


def test_a_copy_has_what_the_state_of_its_source_lacked(
    backend: NativeBackend, token_ids: list[int], alone: Rows
) -> None:
    """Some of a draft was wrong: what was right of it is computed before the state is copied."""
    step(backend, ops=[Truncate(slot, 0) for slot in (1, 2)])
    all_rows(backend, token_ids[:20], slot=1, sizes=[7])
    drafted = Chunk(1, 20, (*token_ids[20:24], 1, 1), 1)
    backend.forward(Batch(0, (drafted,), (), num_drafted=5))
    rest = tuple(token_ids[24:40])
    ops = [Truncate(1, 24), CopyPrefix(1, 2, 24)]
    np.testing.assert_array_equal(step(backend, Chunk(2, 24, rest, len(rest)), ops=ops), alone[24:40])


def test_it_says_what_cannot_be_done(backend: NativeBackend) -> None:
    traits = backend.info.traits
    assert (traits.can_truncate, traits.can_copy, traits.can_export) == (False, True, True)
    filled(backend, 1)
    with pytest.raises(AssertionError, match="cut back"):
        step(backend, ops=[Truncate(1, 7)])
    with pytest.raises(AssertionError, match="a part of a state"):
        step(backend, ops=[CopyPrefix(1, 2, 5)])
    with pytest.raises(AssertionError, match="cut back"):
        backend.export_kv(1, 0, 5)
    with pytest.raises(BackendError, match="are not the KV"):
        backend.import_kv(2, 0, 5, b"x")


def test_the_plan_knows_what_is_kept(path: Path, backend: NativeBackend) -> None:
    """Of the layers with attention each token, of the others a state."""
    state = backend.export_kv(*filled(backend, 1))
    with read_gguf(path) as gguf:
        needs = NativeNeeds([gguf])
        per_token, per_sequence = needs.kv_bytes(None), needs.state_bytes
    assert per_token == backend.info.kv_bytes_per_token
    assert per_sequence == len(state) - 32 * per_token > 0
    assert backend.info.state_bytes_per_slot == 2 * per_sequence


def test_texts_are_embedded(path: Path, backend: NativeBackend, token_ids: list[int]) -> None:
    texts = [token_ids[:30], token_ids[30:35], token_ids[:30]]
    pieces = [Piece(slot, 0, tuple(text), is_last=True) for slot, text in enumerate(texts, start=1)]
    first, second, third = backend.embedder.embed(pieces)
    np.testing.assert_array_equal(first, third)
    assert not np.array_equal(first, second)
    plain = NativeReference(path)
    reference = LatentReference(path) if plain.architecture == "kimi-linear" else plain
    expected = reference.hidden(texts[0]).mean(0)  # up to the scale that logits have in some
    assert relative_error(first / np.linalg.norm(first), expected / np.linalg.norm(expected)) < 0.1


def filled(backend: NativeBackend, slot: int) -> tuple[int, int, int]:
    step(backend, Chunk(slot, 0, tuple(range(20))))
    return slot, 0, 20
