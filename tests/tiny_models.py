"""Small decoders with random weights in every architecture and tensor type of the native executor, as real GGUF files.

Weights are drawn so that hidden states keep a size of about one. The vocabulary is bytes, with a few special tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFWriter, TokenType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from tests.gguf_values import write_values

SPECIAL = ("<|bos|>", "<|end|>", "<|im_start|>", "<|im_end|>")
FLOAT_TYPES = ("F32", "F16", "BF16")
BLOCK_TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4")
K_TYPES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
ALL_TYPES = (*FLOAT_TYPES, *BLOCK_TYPES, *K_TYPES)

_SCALES_AT: Mapping[str, Mapping[int, float]] = {
    "Q2_K": {80: 1.0, 82: 1.5},
    "Q3_K": {108: 1.0},
    "Q4_K": {0: 1.0, 2: 7.5},
    "Q5_K": {0: 1.0, 2: 15.5},
    "Q6_K": {208: 1.0},
    "IQ4_NL": {0: 1.0},
    "IQ4_XS": {0: 1.0},
}
"""Where the float16 scale of a block is, of types that the `gguf` package cannot write; and where the scale of its
minima, so many times larger that weights are zero on average."""


_OWN_KEYS: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {"attention.sliding_window": 24, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    "granite": {
        "attention.scale": 0.4,
        "embedding_scale": 3.0,
        "logit_scale": 2.5,
        "residual_scale": 0.4,
        "attention.layer_norm_rms_epsilon": 0.5,
    },
}
"""Which no file of these architectures lacks; the numbers are such that leaving one out shows."""


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """What to write. `keys` are own keys of the architecture; a value of None leaves the key out."""

    architecture: str = "llama"
    type: str = "F32"
    head_type: str | None = None
    """Of the embedding (and of the head); None = the same."""
    types: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of some matrices, by name, where they differ."""
    vector_type: str = "F32"
    """Of norms and biases."""
    hidden_size: int = 64
    feed_forward_size: int = 96
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 16
    vocab_size: int = 256 + len(SPECIAL) + 3
    """Not a multiple of anything."""
    context_length: int = 4096
    has_head: bool = True
    seed: int = 1
    control: tuple[str, ...] = ()
    """More control tokens, behind `SPECIAL`."""
    keys: Mapping[str, Any] = field(default_factory=dict[str, Any])
    vectors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict[str, NDArray[np.float32]])
    """More tensors of type F32, such as rope divisors."""


def write_tiny_model(path: Path, model: TinyModel) -> Path:
    """Writes the file and returns its path."""
    rng = np.random.default_rng(model.seed)
    writer = GGUFWriter(path, model.architecture)
    _write_sizes(writer, model)
    _write_vocabulary(writer, model)
    for name, shape in _shapes(model).items():
        _write_tensor(writer, rng, model, name, shape)
    for name, values in model.vectors.items():
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def split_model(path: Path, count: int) -> list[Path]:
    """Writes the same model in parts, beside it, as llama.cpp splits it: the first has all the metadata."""
    reader = GGUFReader(path)
    parts = [path.with_name(f"{path.stem}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    for index, part in enumerate(parts):
        writer = GGUFWriter(part, "llama")
        writer.kv_data[0].clear()
        for key, entry in reader.fields.items():
            if index == 0 and not key.startswith("GGUF."):
                writer.add_key_value(key, entry.contents(), entry.types[0], entry.types[-1])
        writer.add_uint16("split.no", index)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[index::count]:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return parts


def _write_sizes(writer: GGUFWriter, model: TinyModel) -> None:
    keys: dict[str, Any] = {
        "block_count": model.num_layers,
        "context_length": model.context_length,
        "embedding_length": model.hidden_size,
        "feed_forward_length": model.feed_forward_size,
        "attention.head_count": model.num_heads,
        "attention.head_count_kv": model.num_kv_heads,
        "attention.key_length": model.head_size,
        "attention.value_length": model.head_size,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": model.head_size,
        "rope.freq_base": 10000.0,
        **_OWN_KEYS.get(model.architecture, {}),
        **model.keys,
    }
    write_values(writer, {f"{model.architecture}.{key}": value for key, value in keys.items()})


def _write_vocabulary(writer: GGUFWriter, model: TinyModel) -> None:
    control = (*SPECIAL, *model.control)
    tokens = [*_byte_alphabet(), *control]
    tokens += [f"unused{index}" for index in range(model.vocab_size - len(tokens))]
    kinds = [TokenType.CONTROL if token in control else TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)


def _byte_alphabet() -> list[str]:
    """The 256 characters that byte-level BPE writes bytes with."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    characters = dict(zip(printable, map(chr, printable), strict=True))
    characters |= {byte: chr(256 + index) for index, byte in enumerate(rest)}
    return [characters[byte] for byte in range(256)]


def _shapes(model: TinyModel) -> dict[str, tuple[int, ...]]:
    hidden, size = model.hidden_size, model.feed_forward_size
    heads, kv_heads = model.num_heads * model.head_size, model.num_kv_heads * model.head_size
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (model.vocab_size, hidden)}
    for index in range(model.num_layers):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in _layer_shapes(model, hidden, size, heads, kv_heads)}
    shapes["output_norm.weight"] = (hidden,)
    if model.has_head:
        shapes["output.weight"] = (model.vocab_size, hidden)
    return shapes


def _layer_shapes(
    model: TinyModel, hidden: int, size: int, heads: int, kv_heads: int
) -> list[tuple[str, tuple[int, ...]]]:
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("attn_norm.weight", (hidden,)),
        ("post_attention_norm.weight" if model.architecture == "seed_oss" else "ffn_norm.weight", (hidden,)),
        ("attn_output.weight", (hidden, heads)),
        ("ffn_down.weight", (hidden, size)),
    ]
    if model.architecture == "phi3":
        return [
            *shapes,
            ("attn_qkv.weight", (heads + 2 * kv_heads, hidden)),
            ("ffn_up.weight", (2 * size, hidden)),
        ]
    if model.architecture == "glm4":
        shapes += [("ffn_up.weight", (2 * size, hidden))]
    else:
        shapes += [("ffn_gate.weight", (size, hidden)), ("ffn_up.weight", (size, hidden))]
    rows = {"q": heads, "k": kv_heads, "v": kv_heads}
    shapes += [(f"attn_{part}.weight", (count, hidden)) for part, count in rows.items()]
    if model.architecture in ("glm4", "qwen2", "seed_oss"):
        shapes += [(f"attn_{part}.bias", (count,)) for part, count in rows.items()]
    if model.architecture in ("qwen3", "gemma3"):
        shapes += [(f"attn_{part}_norm.weight", (model.head_size,)) for part in "qk"]
    if model.architecture in ("gemma2", "gemma3", "glm4"):
        shapes += [("post_attention_norm.weight", (hidden,)), ("post_ffw_norm.weight", (hidden,))]
    return shapes


def _write_tensor(
    writer: GGUFWriter, rng: np.random.Generator, model: TinyModel, name: str, shape: tuple[int, ...]
) -> None:
    if len(shape) == 1:
        values = rng.normal(0 if name.endswith("bias") else 1, 0.3, shape).astype(np.float32)
        kind = GGMLQuantizationType[model.vector_type]
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
        return
    type_name = (model.head_type or model.type) if name in ("token_embd.weight", "output.weight") else model.type
    kind = GGMLQuantizationType[model.types.get(name, type_name)]
    size = 1.0 if name == "token_embd.weight" else 2.0 / np.sqrt(shape[1])
    if kind.name in _SCALES_AT or kind.name == "MXFP4":
        writer.add_tensor(name, _random_blocks(rng, kind, shape, size), raw_dtype=kind)
    else:
        values = rng.normal(0, size, shape).astype(np.float32)
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)


def _random_blocks(
    rng: np.random.Generator, kind: GGMLQuantizationType, shape: tuple[int, ...], size: float
) -> NDArray[np.uint8]:
    """Every code and every inner scale may occur; the outer scale makes the weights about `size` large."""
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (shape[0], shape[1] // block_size, block_bytes), dtype=np.uint8)
    if kind is GGMLQuantizationType.MXFP4:
        blocks[..., 0] = 127 + round(np.log2(size / 5)) + rng.integers(-1, 2, blocks.shape[:2])
        return blocks.reshape(shape[0], -1)
    spread = rng.uniform(0.5, 1.5, blocks.shape[:2])
    _set_scales(blocks, kind, spread)
    found = dequantize(blocks.reshape(shape[0], -1), kind).astype(np.float64)
    _set_scales(blocks, kind, spread * size / found.std())
    return blocks.reshape(shape[0], -1)


def _set_scales(blocks: NDArray[np.uint8], kind: GGMLQuantizationType, values: NDArray[np.float64]) -> None:
    for at, times in _SCALES_AT[kind.name].items():
        blocks[..., at : at + 2] = (values * times).astype(np.float16)[..., None].view(np.uint8)
