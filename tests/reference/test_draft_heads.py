"""Draft heads of the native executor against float64: however the prompt came, and whatever was cut off before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.backends.native import NativeBackend, NativeOptions
from stoker.backends.native.draft_head import DraftHead
from stoker.core.batch import Batch, Chunk, CopyPrefix, Truncate
from stoker.models.gguf import read_gguf
from tests.reference.draft_head_reference import DraftHeadReference
from tests.reference.libllama_draft_head import libllama_guess
from tests.reference.native_runs import relative_error
from tests.tiny_models import TinyModel, write_tiny_model

EXPERTS: dict[str, Any] = {"num_experts": 8, "num_layers": 3, "shared_size": 64, "num_draft_heads": 1}
MODELS = {
    "qwen35": TinyModel(architecture="qwen35", num_layers=3, num_draft_heads=1, has_head=False),
    "qwen35moe": TinyModel(architecture="qwen35moe", **EXPERTS),
    "qwen3next": TinyModel(architecture="qwen3next", **EXPERTS),
    "glm4moe": TinyModel(architecture="glm4moe", num_dense=1, **EXPERTS),
    "deepseek2": TinyModel(architecture="deepseek2", num_dense=1, **EXPERTS),
}
_LIMIT = 2e-3
"""Relative error of logits: weights are floats, activations are quantised in 16 bits."""


def opened(path: Path, *, kv_tokens: int = 512) -> NativeBackend:
    options = NativeOptions(
        context_size=256, kv_tokens=kv_tokens, num_slots=4, threads=2, kv_type="f32", has_draft_head=True
    )
    return NativeBackend([read_gguf(path)], options)


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, length).tolist()


def compute(backend: NativeBackend, slot: int, start: int, entries: list[int], *ops: Any) -> None:
    backend.forward(Batch(1, (Chunk(slot, start, tuple(entries), 1),), ops))


def assert_like_reference(
    backend: NativeBackend, path: Path, slot: int, token_ids: list[int], unknown: int = 0
) -> None:
    expected, logits = DraftHeadReference(path).guesses(token_ids, 3, unknown)
    assert backend.draft([(slot, len(token_ids) - 1, token_ids[-1], 1)]) == [expected[:1]]
    assert backend._head is not None
    assert relative_error(backend._head._logits[:1], logits[:1]) < _LIMIT
    assert backend.draft([(slot, len(token_ids) - 1, token_ids[-1], 3)]) == [expected]
    assert relative_error(backend._head._logits[:1], logits[2:]) < _LIMIT


@pytest.mark.parametrize("name", MODELS)
def test_heads_guess_what_float64_says(tmp_path: Path, name: str) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", MODELS[name])
    token_ids = prompt(90)
    with opened(path) as backend:
        compute(backend, 0, 0, token_ids[:89])
        assert_like_reference(backend, path, 0, token_ids)


@pytest.mark.parametrize("name", MODELS)
def test_libllama_computes_the_same_heads(tmp_path: Path, name: str) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", MODELS[name])
    token_ids = prompt(60)
    guesses, logits = DraftHeadReference(path).guesses(token_ids, 1)
    theirs = libllama_guess(path, token_ids)
    assert theirs.argmax() == guesses[0]
    assert relative_error(theirs[None], logits) < 0.02, "its KV has elements of 16 bits"


@pytest.mark.parametrize("pieces", [[1] * 40, [33, 7], [3, 30, 1, 1, 5], [70, 2, 65, 1]], ids=str)
def test_a_prompt_may_come_in_pieces(tmp_path: Path, pieces: list[int]) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", MODELS["qwen35"])
    token_ids, start = prompt(sum(pieces) + 1), 0
    with opened(path) as backend:
        for piece in pieces:
            compute(backend, 0, start, token_ids[start : start + piece])
            start += piece
        assert_like_reference(backend, path, 0, token_ids)


@pytest.mark.parametrize("name", ["qwen35", "glm4moe"])
@pytest.mark.parametrize("num_right", [0, 1, 2, 3])
def test_what_was_drafted_wrongly_is_forgotten(tmp_path: Path, name: str, num_right: int) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", MODELS[name])
    token_ids = prompt(61 + num_right)
    drafted = [*token_ids[60 : 60 + num_right], *[7] * (3 - num_right)]
    with opened(path) as backend:
        compute(backend, 0, 0, token_ids[:59])
        backend.draft([(0, 59, token_ids[59], 3)])
        chunk = Chunk(0, 59, (token_ids[59], *drafted), 4)
        backend.forward(Batch(2, (chunk,), num_drafted=3))
        assert_like_reference(backend, path, 0, token_ids)
        compute(backend, 0, 60 + num_right, [9], Truncate(0, 60 + num_right))
        assert_like_reference(backend, path, 0, [*token_ids[:-1], 9, 11])


def test_slots_that_share_a_prefix_share_what_the_head_has_seen(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", MODELS["glm4moe"])
    first, second = prompt(70), [*prompt(41), *prompt(20, seed=2)]
    with opened(path) as backend:
        for start in range(45):
            compute(backend, 0, start, first[start : start + 1])
        compute(backend, 1, 41, second[41:60], CopyPrefix(0, 1, 41))
        compute(backend, 0, 45, first[45:69])
        assert_like_reference(backend, path, 1, second, unknown=41)
        assert_like_reference(backend, path, 0, first)
        assert backend.draft([(1, 60, second[60], 2), (0, 69, first[69], 1)]) == [
            DraftHeadReference(path).guesses(second, 2, 41)[0],
            DraftHeadReference(path).guesses(first, 1)[0],
        ]


def test_what_is_exported_has_the_part_of_the_head(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", MODELS["glm4moe"])
    token_ids = prompt(71)
    with opened(path) as backend, opened(path) as other:
        for start in (0, 20, 40):
            compute(backend, 0, start, token_ids[start : start + 20])
        other.import_kv(2, 0, 40, backend.export_kv(0, 0, 40))
        other.import_kv(2, 40, 50, backend.export_kv(0, 40, 50))
        compute(other, 2, 50, token_ids[50:70])
        assert_like_reference(other, path, 2, token_ids, unknown=50)
        compute(backend, 0, 60, token_ids[60:70])
        assert_like_reference(backend, path, 0, token_ids)


def test_nothing_is_guessed_where_no_page_is_free(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", MODELS["glm4moe"])
    token_ids = prompt(33)
    with opened(path, kv_tokens=128) as backend:
        for slot in range(4):
            compute(backend, slot, 0, token_ids[:32])
        drafts = backend.draft([(slot, 32, 5, 90) for slot in range(4)])
        assert [len(draft) for draft in drafts] == [90, 90, 0, 0]
        assert backend.num_used_pages == 4, "nothing is kept"
        assert [len(draft) for draft in backend.draft([(3, 32, 5, 90), (0, 32, 6, 97)])] == [90, 0], "the context ends"


def test_a_head_that_rests_guesses_nothing_for_what_it_has_not_seen(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", MODELS["glm4moe"])
    token_ids = prompt(70)
    with opened(path) as backend:
        assert isinstance(backend._head, DraftHead)
        compute(backend, 0, 0, token_ids[:40])
        backend._head._rest._patience = 0
        compute(backend, 0, 40, token_ids[40:60])
        compute(backend, 1, 60, token_ids[60:61], CopyPrefix(0, 1, 60))
        compute(backend, 2, 40, token_ids[40:41], CopyPrefix(0, 2, 40))
        backend._head._rest._left = 0
        compute(backend, 0, 60, token_ids[60:69])
        compute(backend, 3, 0, token_ids[:69])
        assert [backend.can_draft(slot) for slot in range(4)] == [False, False, False, True]
        assert [len(draft) for draft in backend.draft([(0, 69, token_ids[69], 2), (3, 69, token_ids[69], 2)])] == [0, 2]
        assert_like_reference(backend, path, 3, token_ids)
        compute(backend, 0, 30, token_ids[30:69], Truncate(0, 30))
        assert backend.can_draft(0), "what it had not seen is cut off"
        assert_like_reference(backend, path, 0, token_ids, unknown=30)


def test_the_head_changes_no_logits_and_can_be_left_out(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", MODELS["qwen35moe"])
    options = NativeOptions(context_size=256, kv_tokens=512, num_slots=4, threads=2, kv_type="f32")
    with opened(path) as backend, NativeBackend([read_gguf(path)], options) as plain:
        batch = Batch(1, (Chunk(0, 0, tuple(prompt(40)), 1), Chunk(1, 0, (5, 6), 2)))
        assert (backend.forward(batch) == plain.forward(batch)).all()
        assert backend.info.kv_bytes_per_token > plain.info.kv_bytes_per_token
        assert backend.info.kv_format != plain.info.kv_format
        assert not plain.has_draft_head
