"""Files with random weights that draft for a tiny model, whose hidden states they read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from tests.gguf_values import write_values
from tests.tiny_gemma4 import gemma4_keys, gemma4_vectors
from tests.tiny_models import TinyModel, write_tensors, write_vocabulary


@dataclass(frozen=True, kw_only=True)
class TinyEagle:
    """An EAGLE-3 file, as llama.cpp's converter writes it."""

    target: TinyModel
    hidden_size: int = 64
    feed_forward_size: int = 96
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 16
    layers: tuple[int, ...] = (1, 0, 1)
    """Of the target, whose inputs are fused."""
    num_tokens: int = 0
    """Of its own vocabulary; 0 = that of the target, without a map."""
    has_embedding: bool = True
    has_head: bool = True
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    type: str = "F32"
    seed: int = 7
    keys: dict[str, Any] = field(default_factory=dict[str, Any])
    """More metadata, or others."""
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict[str, NDArray[np.float32]])
    """Tensors that are not random."""
    ids: tuple[int, ...] | None = None
    """Tokens of the target in place of those that are drawn."""

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """The tokens of the target that its head has."""
        if self.ids is not None:
            return np.array(self.ids, dtype=np.int64)
        count = self.num_tokens or self.target.vocab_size
        drawn = np.random.default_rng(self.seed).permutation(self.target.vocab_size)[:count]
        return np.sort(drawn).astype(np.int64)


def write_eagle(path: Path, eagle: TinyEagle) -> Path:
    """Writes the file and returns its path."""
    rng = np.random.default_rng(eagle.seed)
    writer = GGUFWriter(path, "eagle3")
    values = {
        "block_count": 1,
        "context_length": eagle.target.context_length,
        "embedding_length": eagle.hidden_size,
        "feed_forward_length": eagle.feed_forward_size,
        "attention.head_count": eagle.num_heads,
        "attention.head_count_kv": eagle.num_kv_heads,
        "attention.key_length": eagle.head_size,
        "attention.value_length": eagle.head_size,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": eagle.head_size,
        "rope.freq_base": 10000.0,
        "target_layers": list(eagle.layers),
        "target_hidden_size": eagle.target.hidden_size,
        "norm_before_fc": eagle.norm_before_fc,
        "norm_before_residual": eagle.norm_before_residual,
        **eagle.keys,
    }
    write_values(writer, {f"eagle3.{key}": value for key, value in values.items() if value is not None})
    write_vocabulary(writer, eagle.target)
    if eagle.num_tokens or eagle.ids is not None:
        writer.add_tensor("d2t", eagle.token_ids, raw_dtype=GGMLQuantizationType.I64)
    write_tensors(writer, rng, TinyModel(type=eagle.type), _shapes(eagle), eagle.vectors)
    return path


def _shapes(eagle: TinyEagle) -> dict[str, tuple[int, ...]]:
    hidden, inner, both = eagle.hidden_size, eagle.feed_forward_size, 2 * eagle.hidden_size
    heads, kv_heads = eagle.num_heads * eagle.head_size, eagle.num_kv_heads * eagle.head_size
    features = len(eagle.layers) * eagle.target.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, features),
        "output_norm.weight": (hidden,),
        "blk.0.attn_norm.weight": (hidden,),
        "blk.0.attn_norm_2.weight": (hidden,),
        "blk.0.attn_q.weight": (heads, both),
        "blk.0.attn_k.weight": (kv_heads, both),
        "blk.0.attn_v.weight": (kv_heads, both),
        "blk.0.attn_output.weight": (hidden, heads),
        "blk.0.ffn_norm.weight": (hidden,),
        "blk.0.ffn_gate.weight": (inner, hidden),
        "blk.0.ffn_up.weight": (inner, hidden),
        "blk.0.ffn_down.weight": (hidden, inner),
    }
    if eagle.norm_before_fc:
        shapes["enc.output_norm.weight"] = (features,)
    if eagle.has_embedding:
        shapes["token_embd.weight"] = (eagle.target.vocab_size, hidden)
    if eagle.has_head:
        shapes["output.weight"] = (len(eagle.token_ids), hidden)
    return shapes


@dataclass(frozen=True, kw_only=True)
class TinyAssistant:
    """A file of `gemma4-assistant`, as llama.cpp's converter writes it."""

    target: TinyModel
    hidden_size: int = 32
    feed_forward_size: int = 96
    num_heads: int = 4
    windowed: tuple[bool, ...] = (True, True, False)
    """Which layers have the window of the target."""
    type: str = "F32"
    seed: int = 9
    keys: dict[str, Any] = field(default_factory=dict[str, Any])
    """More metadata, or others."""
    vectors: dict[str, NDArray[np.float32]] = field(default_factory=dict[str, NDArray[np.float32]])
    """Tensors that are not random, or more."""

    def size_of(self, index: int) -> int:
        """Of the heads of a layer."""
        return self.target.head_size * (1 if self.windowed[index] else 2)


def write_assistant(path: Path, assistant: TinyAssistant) -> Path:
    """Writes the file and returns its path."""
    rng, target = np.random.default_rng(assistant.seed), assistant.target
    writer = GGUFWriter(path, "gemma4-assistant")
    num_layers = len(assistant.windowed)
    of_target = gemma4_keys(target)
    values = {
        **{key: of_target[key] for key in of_target if key.startswith(("rope", "attention"))},
        "block_count": num_layers,
        "nextn_predict_layers": num_layers,
        "context_length": target.context_length,
        "embedding_length": assistant.hidden_size,
        "embedding_length_out": target.hidden_size,
        "feed_forward_length": assistant.feed_forward_size,
        "attention.head_count": assistant.num_heads,
        "attention.head_count_kv": target.num_kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window_pattern": list(assistant.windowed),
        "attention.shared_kv_layers": num_layers,
        "rope.freq_base": 10000.0,
        **assistant.keys,
    }
    own = {f"gemma4-assistant.{key}": value for key, value in values.items() if value is not None}
    write_values(writer, own)
    write_vocabulary(writer, target)
    vectors = {**gemma4_vectors(target), **assistant.vectors}
    write_tensors(writer, rng, TinyModel(type=assistant.type), _assistant_shapes(assistant), vectors)
    return path


def _assistant_shapes(assistant: TinyAssistant) -> dict[str, tuple[int, ...]]:
    hidden, inner, size = assistant.hidden_size, assistant.feed_forward_size, assistant.target.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (assistant.target.vocab_size, hidden),
        "output_norm.weight": (hidden,),
        "nextn.pre_projection.weight": (hidden, 2 * size),
        "nextn.post_projection.weight": (size, hidden),
    }
    for index in range(len(assistant.windowed)):
        heads = assistant.num_heads * assistant.size_of(index)
        norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        own: dict[str, tuple[int, ...]] = {
            **{f"{name}.weight": (hidden,) for name in norms},
            "attn_q.weight": (heads, hidden),
            "attn_q_norm.weight": (assistant.size_of(index),),
            "attn_output.weight": (hidden, heads),
            "ffn_gate.weight": (inner, hidden),
            "ffn_up.weight": (inner, hidden),
            "ffn_down.weight": (hidden, inner),
            "layer_output_scale.weight": (1,),
        }
        shapes |= {f"blk.{index}.{name}": shape for name, shape in own.items()}
    return shapes
