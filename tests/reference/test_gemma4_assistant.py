"""Gemma 4's assistant on the native executor against float64: with every pool of keys, and whatever was cut off."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.backends.native import NativeBackend, NativeOptions
from stoker.core.batch import Batch, Chunk, CopyPrefix, Truncate
from stoker.models.gguf import read_gguf
from tests.brief import mostly_slow
from tests.reference.gemma4_assistant_reference import AssistantReference
from tests.reference.libllama_drafters import assistant_logits
from tests.reference.native_runs import relative_error
from tests.tiny_drafters import TinyAssistant, write_assistant
from tests.tiny_models import TinyModel, write_tiny_model

PLAIN = TinyModel(architecture="gemma4", num_layers=4, has_head=False)
SHARED = TinyModel(architecture="gemma4", num_layers=6, has_head=False, keys={"attention.shared_kv_layers": 2})
EXPERTS = TinyModel(architecture="gemma4", num_layers=4, num_experts=8, has_head=False)
ASSISTANTS = {
    "plain": TinyAssistant(target=PLAIN),
    "shared keys": TinyAssistant(target=SHARED),
    "experts": TinyAssistant(target=EXPERTS),
    "quantized": TinyAssistant(target=PLAIN, type="Q8_0"),
    "windows only": TinyAssistant(target=PLAIN, windowed=(True,)),
    "other heads": TinyAssistant(target=PLAIN, num_heads=8, windowed=(False, True)),
    "centroids": TinyAssistant(target=PLAIN, vectors={"masked_embd_centroids.weight": np.ones((4, 32), np.float32)}),
}
_LIMIT, _LIMIT_OF_CODES = 3e-3, 3e-2
"""Relative error of logits: activations are quantised in 16 bits, or in 8 where weights are quantized."""


@contextmanager
def opened(
    folder: Path, assistant: TinyAssistant, **options: Any
) -> Generator[tuple[NativeBackend, AssistantReference]]:
    model, drafter = folder / "model.gguf", folder / "assistant.gguf"
    if not model.exists():
        write_tiny_model(model, assistant.target)
        write_assistant(drafter, assistant)
    sizes: dict[str, Any] = {"context_size": 512, "kv_tokens": 1024, "num_slots": 4, "threads": 2, "kv_type": "f32"}
    with NativeBackend(
        [read_gguf(model)], NativeOptions(**{**sizes, **options}), draft_files=[read_gguf(drafter)]
    ) as backend:
        yield backend, AssistantReference(model, drafter)


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, length).tolist()


def compute(backend: NativeBackend, slot: int, start: int, entries: list[int], *ops: Any, rows: int = 1) -> None:
    backend.forward(Batch(1, (Chunk(slot, start, tuple(entries), rows),), ops))


def assert_like_reference(
    backend: NativeBackend, reference: AssistantReference, slot: int, token_ids: list[int], limit: float = _LIMIT
) -> None:
    expected, logits = reference.guesses(token_ids, 3)
    shown: list[Any] = []

    def guess(rows: Any, _: Any) -> list[int]:
        shown.append(rows.copy())
        return rows.argmax(-1).tolist()

    assert backend.draft([(slot, len(token_ids) - 1, token_ids[-1], 3)], guess) == [expected]
    for found, row in zip(shown, logits, strict=True):
        assert relative_error(found, row[None]) < limit


@pytest.mark.parametrize("name", ASSISTANTS)
@pytest.mark.parametrize("length", mostly_slow([2, 24, 25, 33, 90], [2, 25, 90]))
def test_every_kind_of_file_guesses_what_float64_says(tmp_path: Path, name: str, length: int) -> None:
    token_ids = prompt(length)
    with opened(tmp_path, ASSISTANTS[name]) as (backend, reference):
        compute(backend, 0, 0, token_ids[:-1])
        limit = _LIMIT_OF_CODES if name == "quantized" else _LIMIT
        assert_like_reference(backend, reference, 0, token_ids, limit)
        assert_like_reference(backend, reference, 0, token_ids, limit)


@pytest.mark.parametrize("name", ["plain", "shared keys", "experts"])
@pytest.mark.parametrize("length", [20, 90])
def test_libllama_computes_the_same(tmp_path: Path, name: str, length: int) -> None:
    token_ids = prompt(length)
    with opened(tmp_path, ASSISTANTS[name]) as (_, reference):
        expected, logits = reference.guesses(token_ids, 1)
    theirs = assistant_logits(tmp_path / "model.gguf", tmp_path / "assistant.gguf", token_ids)
    assert theirs.argmax() == expected[0]
    assert relative_error(theirs[None], logits) < 0.02, "its KV has elements of 16 bits"


@pytest.mark.parametrize("kv_type", ["f16", "q8", "i16"])
def test_it_sees_keys_of_every_type(tmp_path: Path, kv_type: str) -> None:
    token_ids = prompt(60)
    with opened(tmp_path, ASSISTANTS["plain"], kv_type=kv_type) as (backend, reference):
        compute(backend, 0, 0, token_ids[:-1])
        _, logits = reference.guesses(token_ids, 1)
        shown: list[Any] = []
        backend.draft([(0, 59, token_ids[-1], 1)], lambda rows, _: shown.append(rows.copy()) or [0])
        assert relative_error(shown[0], logits) < (0.05 if kv_type == "q8" else 5e-3)


def test_windows_may_have_pages_of_their_own(tmp_path: Path) -> None:
    token_ids = prompt(300)
    options = {"window_tokens": 600, "kv_tokens": 1024}
    with opened(tmp_path, ASSISTANTS["shared keys"], **options) as (backend, reference):
        assert backend.info.windows is not None
        for start in range(0, 290, 58):
            compute(backend, 0, start, token_ids[start : start + 58])
        compute(backend, 0, 290, token_ids[290:299])
        assert_like_reference(backend, reference, 0, token_ids)


@pytest.mark.parametrize("num_right", [0, 1, 2, 3])
def test_what_was_drafted_wrongly_is_forgotten(tmp_path: Path, num_right: int) -> None:
    token_ids = prompt(61 + num_right)
    drafted = [*token_ids[60 : 60 + num_right], *[7] * (3 - num_right)]
    with opened(tmp_path, ASSISTANTS["plain"]) as (backend, reference):
        compute(backend, 0, 0, token_ids[:59])
        backend.draft([(0, 59, token_ids[59], 3)])
        compute(backend, 0, 59, [token_ids[59], *drafted], rows=4)
        assert_like_reference(backend, reference, 0, token_ids)
        compute(backend, 0, 60 + num_right, [9], Truncate(0, 60 + num_right))
        assert_like_reference(backend, reference, 0, [*token_ids[:-1], 9, 11])


def test_several_slots_at_once_and_prefixes_that_they_share(tmp_path: Path) -> None:
    first, second = prompt(70), [*prompt(41), *prompt(20, seed=2)]
    with opened(tmp_path, ASSISTANTS["shared keys"]) as (backend, reference):
        compute(backend, 0, 0, first[:69])
        compute(backend, 1, 41, second[41:60], CopyPrefix(0, 1, 41))
        assert backend.draft([(1, 60, second[60], 2), (0, 69, first[69], 3)]) == [
            reference.guesses(second, 2)[0],
            reference.guesses(first, 3)[0],
        ]


def test_it_needs_a_state_that_was_computed(tmp_path: Path) -> None:
    token_ids = prompt(41)
    with (
        opened(tmp_path, ASSISTANTS["plain"]) as (backend, reference),
        opened(tmp_path, ASSISTANTS["plain"]) as (other, _),
    ):
        assert backend.draft([(0, 0, 5, 2)]) == [[]], "nothing is there"
        compute(backend, 0, 0, token_ids[:40], rows=0)
        assert not backend.can_draft(0), "nothing was sampled"
        other.import_kv(2, 0, 40, backend.export_kv(0, 0, 40))
        assert not other.can_draft(2)
        compute(other, 3, 0, token_ids[:20])
        assert other.can_draft(3)
        other.import_kv(3, 20, 40, backend.export_kv(0, 20, 40))
        assert not other.can_draft(3), "the state that it has is an older one"
        compute(other, 2, 39, token_ids[39:40], Truncate(2, 39))
        assert_like_reference(other, reference, 2, token_ids)


def test_no_logits_and_no_exports_depend_on_it(tmp_path: Path) -> None:
    sizes = NativeOptions(context_size=512, kv_tokens=1024, num_slots=4, threads=2, kv_type="f32")
    with (
        opened(tmp_path, ASSISTANTS["plain"]) as (backend, _),
        NativeBackend([read_gguf(tmp_path / "model.gguf")], sizes) as plain,
    ):
        for start, count in ((0, 40), (40, 3), (43, 1), (44, 20)):
            entries = tuple(prompt(64)[start : start + count])
            batch = Batch(1, (Chunk(0, start, entries, 1), Chunk(1, start, (5,) * count, 1)))
            assert (backend.forward(batch) == plain.forward(batch)).all()
        assert backend.info.kv_format == plain.info.kv_format
        assert backend.info.kv_bytes_per_token == plain.info.kv_bytes_per_token
        assert bytes(backend.export_kv(0, 0, 60)) == bytes(plain.export_kv(0, 0, 60))
