"""EAGLE-3 files on the native executor against float64: however the prompt came, and whatever was cut off before."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.backends.native import NativeBackend, NativeOptions
from stoker.core.batch import Batch, Chunk, CopyPrefix, Truncate
from stoker.models.gguf import read_gguf
from tests.reference.eagle3_reference import Eagle3Reference
from tests.reference.gemma4_reference import Gemma4Reference
from tests.reference.libllama_drafters import eagle_logits
from tests.reference.native_reference import NativeReference
from tests.reference.native_runs import relative_error
from tests.tiny_drafters import TinyEagle, write_eagle
from tests.tiny_models import TinyModel, write_tiny_model

LLAMA = TinyModel(num_layers=3)
TARGETS = {
    "llama": LLAMA,
    "qwen3": TinyModel(architecture="qwen3", num_layers=3, has_head=False),
    "gpt-oss": TinyModel(
        architecture="gpt-oss",
        num_layers=3,
        num_experts=8,
        keys={"attention.sliding_window": 8},
    ),
    "gemma4": TinyModel(architecture="gemma4", num_layers=4, has_head=False),
    "qwen35": TinyModel(architecture="qwen35", num_layers=4, has_head=False),
    "cohere2": TinyModel(
        architecture="cohere2", num_layers=3, has_head=False, keys={"attention.sliding_window": 8, "logit_scale": 0.5}
    ),
}
DRAFTERS = {
    "plain": TinyEagle(target=LLAMA),
    "few tokens": TinyEagle(target=LLAMA, num_tokens=100),
    "shared embedding": TinyEagle(target=LLAMA, has_embedding=False, num_tokens=64),
    "shared head": TinyEagle(target=LLAMA, has_embedding=False, has_head=False),
    "other width": TinyEagle(target=LLAMA, hidden_size=96, num_heads=2, num_kv_heads=1, head_size=32, num_tokens=50),
    "norm before fc": TinyEagle(target=LLAMA, norm_before_fc=True),
    "norm before residual": TinyEagle(target=LLAMA, norm_before_residual=True),
    "quantized": TinyEagle(target=LLAMA, type="Q8_0", num_tokens=100),
    "first and last layer": TinyEagle(target=LLAMA, layers=(0, 1, 2)),
}
_LIMIT, _LIMIT_OF_CODES = 3e-3, 3e-2
"""Relative error of logits: activations are quantised in 16 bits, or in 8 where weights are quantized."""


def reference_of(model: TinyModel, path: Path) -> Any:
    return Gemma4Reference(path) if model.architecture == "gemma4" else NativeReference(path)


@contextmanager
def opened(
    folder: Path, eagle: TinyEagle, *, kv_tokens: int = 512, **options: Any
) -> Generator[tuple[NativeBackend, Eagle3Reference]]:
    model, drafter = folder / "model.gguf", folder / "eagle.gguf"
    if not model.exists():
        write_tiny_model(model, eagle.target)
        write_eagle(drafter, eagle)
    sizes = NativeOptions(context_size=256, kv_tokens=kv_tokens, num_slots=4, threads=2, kv_type="f32", **options)
    with NativeBackend([read_gguf(model)], sizes, draft_files=[read_gguf(drafter)]) as backend:
        yield backend, Eagle3Reference(reference_of(eagle.target, model), drafter)


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, length).tolist()


def compute(backend: NativeBackend, slot: int, start: int, entries: list[int], *ops: Any) -> None:
    backend.forward(Batch(1, (Chunk(slot, start, tuple(entries), 1),), ops))


def assert_like_reference(
    backend: NativeBackend,
    reference: Eagle3Reference,
    slot: int,
    token_ids: list[int],
    unknown: int | None = None,
    limit: float = _LIMIT,
) -> None:
    expected, logits = reference.guesses(token_ids, 3, unknown)
    shown: list[Any] = []

    def guess(rows: Any, places: Any) -> list[int]:
        shown.append(rows.copy())
        return rows.argmax(-1).tolist()

    assert backend.draft([(slot, len(token_ids) - 1, token_ids[-1], 3)], guess) == [expected]
    for found, row in zip(shown, logits, strict=True):
        is_possible = np.isfinite(row)
        assert (np.isfinite(found[0]) == is_possible).all()
        assert relative_error(found[:, is_possible], row[None, is_possible]) < limit


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_kind_of_file_guesses_what_float64_says(tmp_path: Path, name: str) -> None:
    token_ids = prompt(90)
    with opened(tmp_path, DRAFTERS[name]) as (backend, reference):
        compute(backend, 0, 0, token_ids[:89])
        limit = _LIMIT_OF_CODES if name == "quantized" else _LIMIT
        assert_like_reference(backend, reference, 0, token_ids, limit=limit)


@pytest.mark.parametrize("name", TARGETS)
def test_every_kind_of_model_can_be_drafted_for(tmp_path: Path, name: str) -> None:
    token_ids = prompt(60)
    eagle = TinyEagle(target=TARGETS[name], num_tokens=120, has_embedding=False)
    with opened(tmp_path, eagle) as (backend, reference):
        compute(backend, 0, 0, token_ids[:59])
        assert_like_reference(backend, reference, 0, token_ids)


@pytest.mark.parametrize("name", ["plain", "few tokens", "norm before fc", "norm before residual", "shared head"])
def test_libllama_computes_the_same(tmp_path: Path, name: str) -> None:
    eagle, token_ids = DRAFTERS[name], prompt(60)
    with opened(tmp_path, eagle) as (_, reference):
        expected, logits = reference.guesses(token_ids, 1)
    theirs = eagle_logits(tmp_path / "model.gguf", tmp_path / "eagle.gguf", token_ids, eagle.layers)
    is_possible = np.isfinite(logits[0])
    assert (np.isfinite(theirs) == is_possible).all()
    assert theirs.argmax() == expected[0]
    assert relative_error(theirs[None, is_possible], logits[:, is_possible]) < 0.02, "its KV has elements of 16 bits"


@pytest.mark.parametrize("pieces", [[1] * 40, [33, 7], [3, 30, 1, 1, 5], [70, 2, 65, 1]], ids=str)
def test_a_prompt_may_come_in_pieces(tmp_path: Path, pieces: list[int]) -> None:
    token_ids, start = prompt(sum(pieces) + 1), 0
    with opened(tmp_path, DRAFTERS["few tokens"]) as (backend, reference):
        for piece in pieces:
            compute(backend, 0, start, token_ids[start : start + piece])
            start += piece
        assert_like_reference(backend, reference, 0, token_ids)


@pytest.mark.parametrize("num_right", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["llama", "qwen35"])
def test_what_was_drafted_wrongly_is_forgotten(tmp_path: Path, name: str, num_right: int) -> None:
    token_ids = prompt(61 + num_right)
    drafted = [*token_ids[60 : 60 + num_right], *[7] * (3 - num_right)]
    with opened(tmp_path, TinyEagle(target=TARGETS[name])) as (backend, reference):
        compute(backend, 0, 0, token_ids[:59])
        backend.draft([(0, 59, token_ids[59], 3)])
        chunk = Chunk(0, 59, (token_ids[59], *drafted), 4)
        backend.forward(Batch(2, (chunk,), num_drafted=3))
        assert_like_reference(backend, reference, 0, token_ids)
        compute(backend, 0, 60 + num_right, [9], Truncate(0, 60 + num_right))
        assert_like_reference(backend, reference, 0, [*token_ids[:-1], 9, 11])


def test_slots_that_share_a_prefix_share_what_was_seen_of_it(tmp_path: Path) -> None:
    first, second = prompt(70), [*prompt(41), *prompt(20, seed=2)]
    with opened(tmp_path, DRAFTERS["plain"]) as (backend, reference):
        for start in range(45):
            compute(backend, 0, start, first[start : start + 1])
        compute(backend, 1, 41, second[41:60], CopyPrefix(0, 1, 41))
        compute(backend, 0, 45, first[45:69])
        assert_like_reference(backend, reference, 1, second, unknown=41)
        assert_like_reference(backend, reference, 0, first)
        assert backend.draft([(1, 60, second[60], 2), (0, 69, first[69], 1)]) == [
            reference.guesses(second, 2, 41)[0],
            reference.guesses(first, 1)[0],
        ]


def test_what_is_exported_has_the_part_of_the_drafter(tmp_path: Path) -> None:
    token_ids, eagle = prompt(71), DRAFTERS["plain"]
    with opened(tmp_path, eagle) as (backend, reference), opened(tmp_path, eagle) as (other, _):
        for start in (0, 20, 40):
            compute(backend, 0, start, token_ids[start : start + 20])
        other.import_kv(2, 0, 40, backend.export_kv(0, 0, 40))
        other.import_kv(2, 40, 50, backend.export_kv(0, 40, 50))
        compute(other, 2, 50, token_ids[50:70])
        assert_like_reference(other, reference, 2, token_ids, unknown=50)
        compute(backend, 0, 60, token_ids[60:70])
        assert_like_reference(backend, reference, 0, token_ids)


def test_what_is_exported_is_not_for_another_drafter(tmp_path: Path) -> None:
    eagle, folders = DRAFTERS["plain"], [tmp_path / name for name in ("one", "same", "other")]
    formats = list[str]()
    for folder, seed in zip(folders, (7, 7, 8), strict=True):
        folder.mkdir()
        with opened(folder, replace(eagle, seed=seed)) as (backend, _):
            formats.append(backend.info.kv_format)
    assert formats[0] != formats[2]
    with opened(folders[0], eagle) as (backend, _):
        assert backend.info.kv_format == formats[0]


def test_a_prompt_of_one_token_is_drafted_for(tmp_path: Path) -> None:
    with opened(tmp_path, DRAFTERS["few tokens"]) as (backend, _):
        assert len(backend.draft([(0, 0, 5, 2)])[0]) == 2, "of a token alone it knows no state"
        token_ids = prompt(3)
        compute(backend, 0, 0, token_ids[:1])
        compute(backend, 0, 1, token_ids[1:2])
        assert len(backend.draft([(0, 2, token_ids[2], 2)])[0]) == 2


def test_no_logits_depend_on_it(tmp_path: Path) -> None:
    options = NativeOptions(context_size=256, kv_tokens=512, num_slots=4, threads=2, kv_type="f32")
    with (
        opened(tmp_path, DRAFTERS["plain"]) as (backend, _),
        NativeBackend([read_gguf(tmp_path / "model.gguf")], options) as plain,
    ):
        for start, count in ((0, 40), (40, 3), (43, 1), (44, 20)):
            chunks = (
                Chunk(0, start, tuple(prompt(64)[start : start + count]), 1),
                Chunk(1, start, (5,) * count, 1),
            )
            batch = Batch(1, chunks)
            assert (backend.forward(batch) == plain.forward(batch)).all()
        assert backend.info.kv_bytes_per_token > plain.info.kv_bytes_per_token
        assert not plain.has_draft_head


def test_what_the_layers_are_given_has_the_same_bits_however_it_is_computed(tmp_path: Path) -> None:
    token_ids, found = prompt(40), list[Any]()
    for pieces in ([40], [1] * 40, [17, 5, 18]):
        with opened(tmp_path, DRAFTERS["first and last layer"]) as (backend, _):
            assert backend._head is not None
            start, states = 0, list[Any]()
            for piece in pieces:
                compute(backend, 0, start, token_ids[start : start + piece])
                states.append(backend._head._given[:piece].copy())
                start += piece
            found.append(np.concatenate(states))
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()
