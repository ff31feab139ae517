"""Writes a GGUF with random weights of a given shape and quantisation: as slow as a real model, and as wise as noise.

    python benchmarks/synthetic.py llama-1b-q4_k.gguf --type Q4_K
    python benchmarks/synthetic.py qwen35.gguf --family qwen35-4b
    python benchmarks/synthetic.py eagle.gguf --drafts-for llama-1b-q4_k.gguf

The tokenizer is that of `smollm2`, so prompts are ordinary text. Weights are random blocks of the type itself, of zero
mean: what is measured is how fast they are read and multiplied, and every type is written at the speed of the disk.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
from drafter_shapes import drafter_for
from families import FAMILIES, Family, family, is_float
from numpy.typing import NDArray

from stoker.models.store import resolve

Bytes = NDArray[np.uint8]
TYPES = ("Q4_0", "Q4_K", "Q6_K", "Q8_0", "F16")
_SPREAD = 0.02
"""About the standard deviation of a trained weight."""
_TENSOR_ROWS = 1024
"""Rows that are made at a time, and repeated: a tensor of noise need not be new noise everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A Llama decoder. The defaults are those of Llama 3.2 1B, with the vocabulary of `smollm2`."""

    num_layers: int = 16
    hidden: int = 2048
    feed_forward: int = 8192
    num_heads: int = 32
    num_kv_heads: int = 8
    context: int = 8192

    @property
    def kv_width(self) -> int:
        return self.hidden // self.num_heads * self.num_kv_heads


def write(path: Path, shape: Shape, quantization: str, *, seed: int = 0) -> None:
    """Writes the file; the same arguments write the same bytes."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"Synthetic Llama {quantization}")
    writer.add_block_count(shape.num_layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_rope_dimension_count(shape.hidden // shape.num_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    vocab_size = _copy_tokenizer(writer)
    writer.add_vocab_size(vocab_size)
    random = np.random.default_rng(seed)
    for name, rows, columns in _matrices(shape, vocab_size):
        _add_matrix(writer, name, rows, columns, quantization, random)
    for name in _norms(shape):
        writer.add_tensor(name, np.ones(shape.hidden, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_family(path: Path, found: Family, quantization: str, *, seed: int = 0) -> None:
    """The same for a family."""
    writer = gguf.GGUFWriter(path, found.architecture)
    writer.add_name(f"Synthetic {found.architecture} {quantization}")
    for key, value in found.keys.items():
        _add_value(writer, key if key.startswith("tokenizer.") else f"{found.architecture}.{key}", value)
    writer.add_embedding_length(found.hidden)
    vocab_size = _copy_tokenizer(writer)
    writer.add_vocab_size(vocab_size)
    random = np.random.default_rng(seed)
    norm = (("output_norm.weight", (found.hidden,)),) if found.has_output_norm else ()
    embedding = (("token_embd.weight", (0, found.hidden)),) if found.has_embedding else ()
    if found.num_drafted_tokens:
        token_ids = np.arange(found.num_drafted_tokens, dtype=np.int64)
        writer.add_tensor("d2t", token_ids, raw_dtype=gguf.GGMLQuantizationType.I64)
    for tensor, shape in (*embedding, *found.tensors, *norm):
        sizes = tuple(size or vocab_size for size in shape)
        if is_float(tensor, shape):
            writer.add_tensor(tensor, _floats(tensor, sizes, random))
        else:
            kind = next((kind for part, kind in found.types.items() if part in tensor), quantization)
            _add_matrices(writer, tensor, sizes, kind, random)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Whole numbers as GGUF has them: without a sign."""
    if isinstance(value, list):
        writer.add_array(key, cast(list[Any], value))
    elif type(value) is int:
        writer.add_uint32(key, value)
    else:
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))


def _floats(name: str, shape: tuple[int, ...], random: np.random.Generator) -> NDArray[np.float32]:
    """Norms are 1, what decays decays, and all else is small."""
    if name.endswith(("norm.weight", "scale.weight", "rope_freqs.weight")):
        return np.ones(shape, np.float32)
    values = random.normal(0, _SPREAD, shape).astype(np.float32)
    return -np.abs(values) if name.endswith("ssm_a") else values


def _add_matrices(
    writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...], quantization: str, random: np.random.Generator
) -> None:
    """Of all experts, one below the other; in 8 bits where rows are no whole number of blocks."""
    block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[quantization]]
    kind = quantization if shape[-1] % block == 0 else "Q8_0"
    _add_matrix(writer, name, int(np.prod(shape[:-1])), shape[-1], kind, random, shape[:-1])


def _copy_tokenizer(writer: gguf.GGUFWriter) -> int:
    """Takes everything called `tokenizer.*` over from the real model; returns the size of its vocabulary."""
    vocab_size = 0
    for key, field in gguf.GGUFReader(resolve("smollm2")).fields.items():
        if key.startswith("tokenizer."):
            element = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], element)
        if key == "tokenizer.ggml.tokens":
            vocab_size = len(field.data)
    return vocab_size


def _matrices(shape: Shape, vocab_size: int) -> Iterator[tuple[str, int, int]]:
    yield "token_embd.weight", vocab_size, shape.hidden
    for layer in range(shape.num_layers):
        yield f"blk.{layer}.attn_q.weight", shape.hidden, shape.hidden
        yield f"blk.{layer}.attn_k.weight", shape.kv_width, shape.hidden
        yield f"blk.{layer}.attn_v.weight", shape.kv_width, shape.hidden
        yield f"blk.{layer}.attn_output.weight", shape.hidden, shape.hidden
        yield f"blk.{layer}.ffn_gate.weight", shape.feed_forward, shape.hidden
        yield f"blk.{layer}.ffn_up.weight", shape.feed_forward, shape.hidden
        yield f"blk.{layer}.ffn_down.weight", shape.hidden, shape.feed_forward


def _norms(shape: Shape) -> Iterator[str]:
    for layer in range(shape.num_layers):
        yield f"blk.{layer}.attn_norm.weight"
        yield f"blk.{layer}.ffn_norm.weight"
    yield "output_norm.weight"


def _add_matrix(
    writer: gguf.GGUFWriter,
    name: str,
    rows: int,
    columns: int,
    quantization: str,
    random: np.random.Generator,
    shape: tuple[int, ...] = (),
) -> None:
    """`shape`: of the rows, where they have several dimensions."""
    kind = gguf.GGMLQuantizationType[quantization]
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    made = min(rows, _TENSOR_ROWS)
    blocks = random.integers(0, 256, (made * columns // block, block_bytes), np.uint8)
    _WRITE_SCALES[quantization](blocks, random)
    tensor = np.resize(blocks.reshape(made, -1), (rows, columns // block * block_bytes))
    writer.add_tensor(name, tensor.reshape(*(shape or (rows,)), -1), raw_dtype=kind)


def _halves(count: int, scale: float) -> Bytes:
    return np.full(count, scale, np.float16).view(np.uint8).reshape(count, 2)


def _write_q4_0(blocks: Bytes, _: np.random.Generator) -> None:
    blocks[:, 0:2] = _halves(len(blocks), _SPREAD / 4.6)  # codes -8 … 7


def _write_q8_0(blocks: Bytes, _: np.random.Generator) -> None:
    blocks[:, 0:2] = _halves(len(blocks), _SPREAD / 74)  # codes -128 … 127


def _write_q4_k(blocks: Bytes, _: np.random.Generator) -> None:
    """Codes are 0 … 15, so the minimum is 7.5 times the scale; the 6-bit factors of both are 32 in every block."""
    blocks[:, 0:2] = _halves(len(blocks), _SPREAD / (32 * 4.6))
    blocks[:, 2:4] = _halves(len(blocks), 7.5 * _SPREAD / (32 * 4.6))
    blocks[:, 4:12] = 0b10_100000  # four factors' 6 bits, and the upper 2 bits of the other four
    blocks[:, 12:16] = 0


def _write_q6_k(blocks: Bytes, _: np.random.Generator) -> None:
    blocks[:, 192:208] %= 64  # 8-bit scales, positive ones
    blocks[:, 208:210] = _halves(len(blocks), _SPREAD / (31.5 * 18))


def _write_f16(blocks: Bytes, random: np.random.Generator) -> None:
    blocks[:] = random.normal(0, _SPREAD, len(blocks)).astype(np.float16).view(np.uint8).reshape(blocks.shape)


def _write_mxfp4(blocks: Bytes, _: np.random.Generator) -> None:
    blocks[:, 0] = 127 - 8  # 2^-8: codes are about 4 large, halves of them


_WRITE_SCALES: dict[str, Callable[[Bytes, np.random.Generator], None]] = {
    "Q4_0": _write_q4_0,
    "Q8_0": _write_q8_0,
    "Q4_K": _write_q4_k,
    "Q6_K": _write_q6_k,
    "F16": _write_f16,
    "MXFP4": _write_mxfp4,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--family", choices=sorted(FAMILIES), help="a real shape, instead of the sizes below")
    parser.add_argument("--drafts-for", type=Path, help="a model: a file that drafts from what that one computes")
    parser.add_argument("--type", choices=TYPES, default="Q4_K")
    for field in Shape.__dataclass_fields__.values():
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=field.default)
    arguments = vars(parser.parse_args())
    path, quantization, chosen, target = (arguments.pop(name) for name in ("path", "type", "family", "drafts_for"))
    if target is not None:
        write_family(path, drafter_for(target), quantization)
    elif chosen is not None:
        write_family(path, family(chosen), quantization)
    else:
        write(path, Shape(**arguments), quantization)
    print(f"{path}: {path.stat().st_size / 2**20:.0f} MiB of {quantization}")


if __name__ == "__main__":
    main()
