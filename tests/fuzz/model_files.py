"""Damaged models and adapters, through the native loader and two steps of computing."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from stoker.backends.native import NativeBackend, NativeOptions
from stoker.core.batch import Batch, Chunk
from stoker.models.gguf import read_gguf
from stoker.models.lora import lora_target, read_lora
from tests.adapter_files import random_pairs, write_adapter
from tests.tiny_models import TinyModel, write_tiny_model

MODELS = (
    TinyModel(type="Q4_0", num_layers=1),
    TinyModel(type="Q8_0", num_layers=1, vector_type="F16"),
    TinyModel(architecture="qwen2", type="Q5_1", num_layers=1, num_kv_heads=4),
    TinyModel(architecture="qwen3", type="F16", num_layers=1),
    TinyModel(architecture="gemma3", type="Q8_0", num_layers=1, keys={"attention.sliding_window": 4}, has_head=False),
    TinyModel(architecture="phi3", num_layers=1, vectors={"rope_factors_short.weight": np.ones(8, np.float32)}),
    TinyModel(type="Q6_K", hidden_size=256, feed_forward_size=256, head_size=64, num_layers=1),
    TinyModel(type="MXFP4", num_layers=1),
    TinyModel(type="IQ4_XS", hidden_size=256, feed_forward_size=256, head_size=64, num_layers=1),
)

_U32 = (0, 1, 2, 3, 7, 31, 33, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
_U64 = (0, 1, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
FLOATS = (0.0, -0.0, 1e-45, 1e38, -1e38, float("inf"), float("-inf"), float("nan"), 1.0, -1.0)


def files_of(folder: Path) -> list[tuple[bytes, int]]:
    """Whole files with the length of their headers, written once."""
    found: list[tuple[bytes, int]] = []
    for index, model in enumerate(MODELS):
        path = folder / f"whole{index}.gguf"
        if not path.exists():
            write_tiny_model(path, model)
        with read_gguf(path) as gguf:
            found.append((path.read_bytes(), gguf.data_offset))
    return found


def damage_header(rng: random.Random, data: bytearray, header: int) -> None:
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(8, header - 8)
        kind = rng.random()
        if kind < 0.4:
            data[at] = rng.randrange(256)
        elif kind < 0.65:
            data[at : at + 4] = struct.pack("<I", rng.choice(_U32))
        elif kind < 0.75:
            data[at : at + 4] = struct.pack("<f", rng.choice(FLOATS))
        elif kind < 0.9:
            data[at : at + 8] = struct.pack("<Q", rng.choice(_U64))
        elif kind < 0.95:
            del data[rng.randrange(header, len(data)) :]
        else:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice([1, 4, 8, 32])))


def damage_values(rng: random.Random, data: bytearray, header: int) -> None:
    for _ in range(rng.choice([1, 5, 50])):
        at = rng.randrange(header, len(data) - 8)
        kind = rng.random()
        if kind < 0.3:
            data[at : at + 4] = struct.pack("<f", rng.choice(FLOATS))
        elif kind < 0.8:  # halves: NaN, infinities, the largest, the smallest
            data[at : at + 2] = struct.pack(
                "<H", rng.choice([0x7E00, 0xFE00, 0x7C00, 0xFC00, 0x7BFF, 1, 0x8000, 0xFFFF])
            )
        else:
            end = min(len(data), at + rng.choice([16, 256, 1 << 16]))
            data[at:end] = bytes([rng.choice([0, 0x7F, 0x80, 0xFF])]) * (end - at)


def compute(path: Path, **options: Any) -> str:
    """Two steps with a model: a prompt, and a token behind it."""
    given: dict[str, Any] = {"context_size": 64, "kv_tokens": 128, "num_slots": 2, "threads": 2, **options}
    with read_gguf(path) as gguf, NativeBackend([gguf], NativeOptions(**given), open_file=read_gguf) as backend:
        _two_steps(backend)
    return "computed"


def _two_steps(backend: NativeBackend, adapters: tuple[tuple[str, float], ...] = ()) -> None:
    top = backend.info.vocab_size - 1
    rows = backend.forward(Batch(0, (Chunk(0, 0, (0, min(5, top), top, 0), 2, adapters),)))
    assert rows.shape == (2, top + 1)
    backend.forward(Batch(1, (Chunk(0, 4, (top,), 1, adapters), Chunk(1, 0, (0,), 1))))


def header_case(rng: random.Random, folder: Path) -> str:
    data, header = rng.choice(files_of(folder))
    return _with_bytes(rng, folder, data, header, damage_header)


def weights_case(rng: random.Random, folder: Path) -> str:
    data, header = rng.choice(files_of(folder))
    return _with_bytes(rng, folder, data, header, damage_values)


def _with_bytes(
    rng: random.Random,
    folder: Path,
    data: bytes,
    header: int,
    damage: Callable[[random.Random, bytearray, int], None],
) -> str:
    changed = bytearray(data)
    damage(rng, changed, header)
    path = folder / "case.gguf"
    path.write_bytes(changed)
    return compute(path, kv_type=rng.choice(["f16", "f32", "q8", "q4", "q16", "i16"]))


def rope_case(rng: random.Random, folder: Path) -> str:
    numbers: tuple[Any, ...] = (
        0,
        1,
        2,
        3,
        15,
        16,
        17,
        32,
        2**31,
        0.0,
        -1.0,
        1e-30,
        1e30,
        *FLOATS,
        "yarn",
        "text",
        [1],
        [],
    )
    keys = {
        key: rng.choice(numbers)
        for key in (
            "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor",
            "rope.scale_linear", "rope.freq_base", "rope.freq_base_swa", "rope.dimension_count",
            "rope.dimension_count_swa", "rope.dimension_sections", "attention.sliding_window",
            "attention.sliding_window_pattern", "context_length", "attention.key_length", "attention.head_count_kv",
            "final_logit_softcapping", "attention.layer_norm_rms_epsilon",
        )
        if rng.random() < 0.06
    }  # fmt: skip
    if rng.random() < 0.7:
        keys["rope.scaling.type"] = rng.choice(["none", "linear", "linear", "yarn", "yarn", "longrope", "mrope", ""])
    names = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight", "output.bias")
    vectors = {
        name: np.array([_divisor(rng) for _ in range(rng.choice([1, 7, 8, 8, 8, 8, 9, 263]))], np.float32)
        for name in names
        if rng.random() < 0.15
    }
    architecture = rng.choice(["llama", "phi3", "gemma3", "qwen2", "qwen3"])
    path = folder / "case.gguf"
    with suppress(OverflowError, struct.error, ValueError, TypeError):  # of the writer
        write_tiny_model(
            path,
            TinyModel(architecture=architecture, num_layers=rng.choice([1, 2]), keys=keys, vectors=vectors),
        )
        return compute(path, context_size=rng.choice([64, 4096, 100_000]))
    return "not written"


def _divisor(rng: random.Random) -> float:
    return rng.choice(FLOATS) if rng.random() < 0.05 else rng.choice([1.0, 2.0, 1e-30, 1e30])


def lora_case(rng: random.Random, folder: Path) -> str:
    model = folder / "lora_model.gguf"
    if not model.exists():
        write_tiny_model(model, TinyModel(type="Q8_0", num_layers=1))
    path = folder / "adapter.gguf"
    kind = rng.choice(["F32", "F16", "Q8_0"])
    rank = 32 if kind == "Q8_0" else rng.choice([1, 4, 8, 33])
    pairs = random_pairs(model, rng.randrange(1 << 30), rank=rank)
    if rng.random() < 0.4:
        vocab = 263
        pairs |= {"token_embd.weight": (np.ones((vocab, rank), np.float32), np.ones((64, rank), np.float32))}
    if rng.random() < 0.4:
        pairs |= {"output.weight": (np.ones((rank, 64), np.float32), np.ones((263, rank), np.float32))}
    write_adapter(path, pairs, alpha=rng.choice([None, 8.0, *FLOATS]), kind=kind)
    with read_gguf(path) as file:
        header = file.data_offset
    changed = bytearray(path.read_bytes())
    for damage, share in ((damage_header, 0.5), (damage_values, 0.6)):
        if rng.random() < share:
            damage(rng, changed, min(header, len(changed) - 16))
    path.write_bytes(changed)
    with ExitStack() as stack:
        gguf = stack.enter_context(read_gguf(model))
        options = NativeOptions(context_size=64, kv_tokens=128, num_slots=2, threads=2)
        backend = stack.enter_context(NativeBackend([gguf], options, open_file=read_gguf))
        found = read_lora(path, lora_target([gguf]))
        backend.load_adapter(found.key, path)
        _two_steps(backend, ((found.key, rng.choice([1.0, 1e30, float("nan")])),))
        backend.unload_adapter(found.key)
    return "computed"
