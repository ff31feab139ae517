"""Damaged and lying files that draft for another model, which is sound."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.backends.native import NativeBackend, NativeOptions
from stoker.core.batch import Batch, Chunk
from stoker.models.gguf import read_gguf
from tests.fuzz.families import is_written_wrong
from tests.tiny_drafters import TinyAssistant, TinyEagle, write_assistant, write_eagle
from tests.tiny_models import TinyModel, write_tiny_model

_LLAMA = TinyModel(num_layers=3)
_GEMMA = TinyModel(architecture="gemma4", num_layers=4, keys={"attention.shared_kv_layers": 2}, has_head=False)
_EAGLES = (
    TinyEagle(target=_LLAMA, num_tokens=100),
    TinyEagle(target=_LLAMA, has_embedding=False, has_head=False, norm_before_fc=True),
    TinyEagle(target=_LLAMA, hidden_size=96, num_heads=2, num_kv_heads=1, head_size=32, type="Q8_0"),
)
_ASSISTANTS = (TinyAssistant(target=_GEMMA), TinyAssistant(target=_GEMMA, windowed=(False, True), type="Q8_0"))
_OWN: dict[str, tuple[Any, ...]] = {
    "target_layers": ([], [0], [0, 1, 2], [0, 1, 2, 3], [2, 2, 2], [0, 1, 2**31 - 1], [0, 1, -1], "text", 1),
    "target_hidden_size": (0, 1, 63, 64, 96, 2**31 - 1, -1, None),
    "embedding_length_out": (0, 1, 32, 63, 96, 2**31 - 1, -1, None),
    "norm_before_fc": (True, False, 1),
    "norm_before_residual": (True, False, 1),
}


def drafter_case(rng: random.Random, folder: Path) -> str:
    """A file of one of both kinds, with other numbers than its tensors have, or damaged."""
    model, path = folder / "model.gguf", folder / "case.gguf"
    if rng.random() < 0.5:
        eagle = rng.choice(_EAGLES)
        write_tiny_model(model, eagle.target)
        is_written = is_written_wrong(rng, replace(eagle, keys=_own_lies(rng)), path, write_eagle)
    else:
        assistant = rng.choice(_ASSISTANTS)
        write_tiny_model(model, assistant.target)
        is_written = is_written_wrong(rng, replace(assistant, keys=_own_lies(rng)), path, write_assistant)
    if not is_written:
        return "not written"
    return _draft(model, path)


def _own_lies(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.6:
        return {}
    return {name: rng.choice(values) for name, values in _OWN.items() if rng.random() < 0.4}


def _draft(model: Path, drafter: Path) -> str:
    options = NativeOptions(context_size=64, kv_tokens=128, num_slots=2, threads=2)
    with (
        read_gguf(model) as gguf,
        read_gguf(drafter) as other,
        NativeBackend([gguf], options, draft_files=[other]) as backend,
    ):
        top = backend.info.vocab_size - 1
        backend.forward(Batch(0, (Chunk(0, 0, (0, 5, top, 0), 2),)))
        drafts = backend.draft([(0, 4, 7, 3)])
        assert all(0 <= entry <= top for draft in drafts for entry in draft)
    return "computed"
