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
from gguf.quants import quantize
from numpy.typing import NDArray

from tests.gguf_values import set_half, write_values
from tests.small_types import dequantized
from tests.tiny_gemma3n import NEVER_QUANTISED, gemma3n_ends, gemma3n_keys, gemma3n_layer, gemma3n_vectors
from tests.tiny_gemma4 import gemma4_ends, gemma4_keys, gemma4_layer, gemma4_vectors
from tests.tiny_hybrids import HYBRID_KEYS, has_attention, has_feed_forward, is_mixer_float, with_mixer
from tests.tiny_latent import WITH_LATENT, latent_keys, plm_keys, with_latent, with_one_matrix

SPECIAL = ("<|bos|>", "<|end|>", "<|im_start|>", "<|im_end|>")
FLOAT_TYPES = ("F32", "F16", "BF16")
GRID_TYPES = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0")
BLOCK_TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4")
K_TYPES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
EXPORTED_TYPES = (*FLOAT_TYPES, *BLOCK_TYPES, *K_TYPES)
"""Types that an ONNX folder can have."""
ALL_TYPES = (*EXPORTED_TYPES, *GRID_TYPES, "NVFP4", "Q1_0")

_SCALES_AT: Mapping[str, Mapping[int, float]] = {
    "Q2_K": {80: 1.0, 82: 1.5},
    "Q3_K": {108: 1.0},
    "Q4_K": {0: 1.0, 2: 7.5},
    "Q5_K": {0: 1.0, 2: 15.5},
    "Q6_K": {208: 1.0},
    "IQ4_NL": {0: 1.0},
    "IQ4_XS": {0: 1.0},
    **{name: {0: 1.0} for name in GRID_TYPES},
    "TQ1_0": {52: 1.0},
    "TQ2_0": {64: 1.0},
    "NVFP4": {},
    "Q1_0": {0: 1.0},
    "Q8_K": {},
}
"""Where the float16 scale of a block is, of types that the `gguf` package cannot write; and where the scale of its
minima, so many times larger that weights are zero on average."""


_OWN_KEYS: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {"attention.sliding_window": 24, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    "cohere2": {
        "attention.sliding_window": 24,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": None,
        "logit_scale": 0.4,
    },
    "command-r": {
        "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": None,
        "logit_scale": 0.4,
    },
    "bailingmoe2": {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.5},
    "dots1": {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.5},
    "exaone-moe": {"attention.sliding_window": 24, "expert_gating_func": 2, "expert_weights_norm": True},
    "minimax-m2": {"expert_gating_func": 2},
    "apertus": {"xielu.alpha_n": [0.3, -0.5], "xielu.alpha_p": [0.2, 0.9], "xielu.beta": 0.5, "xielu.eps": -1e-6},
    "gptneox": {"use_parallel_residual": True},
    "qwen3vlmoe": {"rope.dimension_sections": [3, 3, 2, 0]},
    "ernie4_5-moe": {"interleave_moe_layer_step": 1},
    "llama4": {"interleave_moe_layer_step": 2, "expert_shared_feed_forward_length": None, "expert_shared_count": None},
    "nanbeige": {"num_loops": 2},
    "olmo": {
        "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": None,
        "attention.clamp_kqv": 1.5,
    },
    "smallthinker": {"attention.sliding_window": 4096, "expert_gating_func": 1},
    "glm4moe": {"expert_weights_norm": True, "expert_weights_scale": 1.5},
    "gpt-oss": {"attention.sliding_window": 24},
    "granite_swa": {
        "attention.scale": 0.4,
        "embedding_scale": 3.0,
        "logit_scale": 2.5,
        "residual_scale": 0.4,
        "attention.sliding_window": 24,
        "attention.sliding_window_pattern": [False, True],
        "attention.rope_pattern": [False, True],
    },
    "granitemoe": {"attention.scale": 0.4, "embedding_scale": 3.0, "logit_scale": 2.5, "residual_scale": 0.4},
    "paddleocr": {"rope.dimension_sections": [3, 3, 2, 0]},
    "qwen": {"feed_forward_length": 192},
    "qwen2vl": {"rope.dimension_sections": [3, 3, 2, 0]},
    "qwen3vl": {"rope.dimension_sections": [3, 3, 2, 0]},
    "granite": {
        "attention.scale": 0.4,
        "embedding_scale": 3.0,
        "logit_scale": 2.5,
        "residual_scale": 0.4,
        "attention.layer_norm_rms_epsilon": 0.5,
    },
}
"""Which no file of these architectures lacks; the numbers are such that leaving one out shows."""


OTHER_NORM = ("glm4moe", "gpt-oss", "seed_oss", "qwen35", "qwen35moe", "qwen3next")
"""In which the norm before the feed-forward is called as if it came after attention."""
_PLAIN_SIZES = ("phimoe", "llama", "olmoe", "granitemoe", "granite_swa", "granitehybrid", "hunyuan-moe", "minimax-m2")
"""Whose experts are of the size that is the feed-forward's elsewhere."""
_WITH_SELECTION_BIAS = (
    "afmoe",
    "bailingmoe2",
    "deepseek2",
    "dots1",
    "ernie4_5-moe",
    "exaone-moe",
    "glm4moe",
    "kimi-linear",
    "lfm2moe",
    "minimax-m2",
    "nemotron_h_moe",
)
LAYER_NORMS = (
    "falcon",
    "gpt2",
    "gptneox",
    "jais2",
    "nemotron",
    "orion",
    "phi2",
    "stablelm",
    "starcoder",
    "starcoder2",
)
"""Whose norms take the mean away, and have biases."""
_LAYER_NORM_KEYS: Mapping[str, Any] = {
    "attention.layer_norm_epsilon": 1e-5,
    "attention.layer_norm_rms_epsilon": None,
}
_WITHOUT_GATE = (*(name for name in LAYER_NORMS if name not in ("orion", "stablelm")), "apertus", "arcee", "plm")
_WITH_FUSED_ATTENTION = ("qwen", "phi2", "phi3", "chatglm", "bailingmoe2", "falcon", "gpt2", "gptneox", "starcoder")
_WITH_BIASES = ("gpt2", "gptneox", "jais2", "phi2", "phimoe", "starcoder", "starcoder2")
"""Of all matrices but those of experts."""
_WITH_HEAD_NORMS = (
    "afmoe",
    "apertus",
    "bailingmoe2",
    "dots1",
    "exaone-moe",
    "exaone4",
    "gemma3",
    "hunyuan-dense",
    "hunyuan-moe",
    "hunyuan_vl",
    "lfm2",
    "lfm2moe",
    "maincoder",
    "mellum",
    "qwen3",
    "qwen3moe",
    "qwen3vl",
    "qwen3vlmoe",
)


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
    num_draft_heads: int = 0
    """Layers behind these that guess further tokens."""
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 16
    layer_heads: tuple[tuple[int, int], ...] = ()
    """Heads, and those of keys and values, of each layer, where they differ."""
    layer_sizes: tuple[int, ...] = ()
    """Of the feed-forward of each layer, where they differ."""
    num_experts: int = 0
    expert_size: int = 32
    num_dense: int = 0
    """First layers without experts, of architectures that have them."""
    shared_size: int = 0
    """Of the block beside the experts."""
    vocab_size: int = 256 + len(SPECIAL) + 3
    """Not a multiple of anything."""
    context_length: int = 4096
    has_head: bool = True
    is_old: bool = False
    """Delta nets with one tensor for queries, keys, values and gates, as files of 2025 have them; latent vectors with
    one matrix for the keys and values of all heads, as those of 2024, when matrices of BitNet had scales."""
    has_one_norm: bool = False
    """Before attention and feed-forward, of architectures that may have one for each."""
    seed: int = 1
    control: tuple[str, ...] = ()
    """More control tokens, behind `SPECIAL`."""
    keys: Mapping[str, Any] = field(default_factory=dict[str, Any])
    vectors: Mapping[str, NDArray[np.float32]] = field(default_factory=dict[str, NDArray[np.float32]])
    """More tensors of type F32, such as rope divisors; or others than random ones."""

    def heads_of(self, index: int) -> tuple[int, int]:
        """Of a layer: of queries, and of keys and values."""
        if self.layer_heads:
            return self.layer_heads[index]
        return self.num_heads, self.num_kv_heads if has_attention(self, index) else 0

    def all_kv_heads(self) -> int | list[int]:
        """Of each layer, or of all if they are alike."""
        counts = [self.heads_of(index)[1] for index in range(self.num_layers)]
        return counts if len(set(counts)) > 1 else counts[0]

    def sizes(self) -> int | list[int]:
        """Of the feed-forward of each layer, or of all if they are alike."""
        if self.layer_sizes:
            return list(self.layer_sizes)
        usual = self.expert_size if self.num_experts and self.architecture in _PLAIN_SIZES else self.feed_forward_size
        sizes = [usual if has_feed_forward(self, index) else 0 for index in range(self.num_layers)]
        return sizes if 0 in sizes else usual

    def own_key(self, suffix: str) -> Any:
        """A number of those with recurrent layers."""
        return {**HYBRID_KEYS.get(self.architecture, {}), **self.keys}[suffix]


def write_tiny_model(path: Path, model: TinyModel) -> Path:
    """Writes the file and returns its path."""
    rng = np.random.default_rng(model.seed)
    writer = GGUFWriter(path, model.architecture)
    _write_sizes(writer, model)
    write_vocabulary(writer, model)
    write_tensors(writer, rng, model, _shapes(model), {**_own_vectors(model), **model.vectors})
    return path


def write_tensors(
    writer: GGUFWriter,
    rng: np.random.Generator,
    types: TinyModel,
    shapes: Mapping[str, tuple[int, ...]],
    vectors: Mapping[str, NDArray[np.float32]],
) -> None:
    """Writes random tensors of these shapes and types, but for those of `vectors`, and ends the file."""
    for name, shape in shapes.items():
        if name not in vectors:
            write_tensor(writer, rng, types, name, shape)
    for name, values in vectors.items():
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _own_vectors(model: TinyModel) -> dict[str, NDArray[np.float32]]:
    found = {"gemma4": gemma4_vectors, "gemma3n": gemma3n_vectors}.get(model.architecture)
    return {} if found is None else found(model)


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
        "block_count": model.num_layers + model.num_draft_heads,
        "nextn_predict_layers": model.num_draft_heads or None,
        "context_length": model.context_length,
        "embedding_length": model.hidden_size,
        "feed_forward_length": model.sizes(),
        "attention.head_count": [num for num, _ in model.layer_heads] or model.num_heads,
        "attention.head_count_kv": model.all_kv_heads(),
        "attention.key_length": model.head_size,
        "attention.value_length": model.head_size,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": model.head_size,
        "rope.freq_base": 10000.0,
        **(_expert_keys(model) if model.num_experts else {}),
        **(_LAYER_NORM_KEYS if model.architecture in LAYER_NORMS else {}),
        **_OWN_KEYS.get(model.architecture, {}),
        **HYBRID_KEYS.get(model.architecture, {}),
        **(gemma4_keys(model) if model.architecture == "gemma4" else {}),
        **(gemma3n_keys(model) if model.architecture == "gemma3n" else {}),
        **(latent_keys(model) if model.architecture in WITH_LATENT else {}),
        **(plm_keys(model) if model.architecture == "plm" else {}),
        **model.keys,
    }
    own = {key if key.startswith("xielu.") else f"{model.architecture}.{key}": value for key, value in keys.items()}
    write_values(writer, own)


def _expert_keys(model: TinyModel) -> dict[str, Any]:
    return {
        "expert_count": model.num_experts,
        "expert_used_count": 3,
        "expert_feed_forward_length": model.expert_size,
        "expert_shared_feed_forward_length": model.shared_size or None,
        "expert_shared_count": model.shared_size // model.expert_size or None,
        "leading_dense_block_count": model.num_dense or None,
    }


def write_vocabulary(writer: GGUFWriter, model: TinyModel) -> None:
    """Bytes, and a few special tokens."""
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
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (model.vocab_size, model.hidden_size)}
    shapes |= gemma4_ends(model) if model.architecture == "gemma4" else {}
    shapes |= gemma3n_ends(model) if model.architecture == "gemma3n" else {}
    for index in range(model.num_layers):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in _shapes_of_layer(model, index)}
    for index in range(model.num_layers, model.num_layers + model.num_draft_heads):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in _shapes_of_draft_head(model, index)}
    if model.architecture in ("gpt2", "starcoder"):
        shapes["position_embd.weight"] = (model.context_length, model.hidden_size)
    if model.architecture in (*LAYER_NORMS, "phimoe"):
        shapes["output_norm.bias"] = (model.hidden_size,)
    if model.architecture in ("phi2", "phimoe"):
        shapes["output.bias"] = (model.vocab_size,)
    output_norm = "token_embd_norm" if model.architecture.startswith("lfm2") else "output_norm"
    if model.architecture != "olmo":
        shapes[f"{output_norm}.weight"] = (model.hidden_size,)
    if model.has_head:
        shapes["output.weight"] = (model.vocab_size, model.hidden_size)
    return shapes


def _shapes_of_layer(model: TinyModel, index: int) -> list[tuple[str, tuple[int, ...]]]:
    if model.architecture == "gemma4":
        return gemma4_layer(model, index)
    if model.architecture == "gemma3n":
        return gemma3n_layer(model, index)
    num, num_kv = model.heads_of(index)
    size = model.layer_sizes[index] if model.layer_sizes else model.feed_forward_size
    if model.architecture == "deci":
        return _deci_shapes(model, num * model.head_size, num_kv * model.head_size, size)
    if model.architecture == "bitnet":
        return _bitnet_shapes(model, num * model.head_size, num_kv * model.head_size, size)
    shapes = _layer_shapes(model, model.hidden_size, size, num * model.head_size, num_kv * model.head_size)
    if model.num_experts and _has_experts(model, index):
        dense = ("ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")
        shapes = [(name, shape) for name, shape in shapes if name not in dense] + _expert_shapes(model)
    if model.architecture == "plm":
        return with_one_matrix(model, shapes)
    has_latent = model.architecture in WITH_LATENT and (num_kv or model.architecture != "kimi-linear")
    return with_latent(model, shapes) if has_latent else with_mixer(model, index, shapes)


def _deci_shapes(model: TinyModel, heads: int, kv_heads: int, size: int) -> list[tuple[str, tuple[int, ...]]]:
    """Without keys there is but the output; without heads, or without a size, nothing."""
    shapes = _layer_shapes(model, model.hidden_size, size, heads, kv_heads)
    left_out = ["attn_q", "attn_k", "attn_v"] if heads and not kv_heads else [] if heads else ["attn_"]
    left_out += [] if size else ["ffn_"]
    return [(name, shape) for name, shape in shapes if not name.startswith(tuple(left_out))]


def _bitnet_shapes(model: TinyModel, heads: int, kv_heads: int, size: int) -> list[tuple[str, tuple[int, ...]]]:
    shapes = _layer_shapes(model, model.hidden_size, size, heads, kv_heads)
    matrices = [name.removesuffix(".weight") for name, shape in shapes if len(shape) == 2]
    scales = [(f"{name}.scale", (1,)) for name in matrices if model.is_old]
    return [*shapes, *scales, ("attn_sub_norm.weight", (heads,)), ("ffn_sub_norm.weight", (size,))]


def _has_experts(model: TinyModel, index: int) -> bool:
    if model.architecture == "llama4":
        return (index + 1) % {**_OWN_KEYS["llama4"], **model.keys}["interleave_moe_layer_step"] == 0
    return index >= model.num_dense


def _shapes_of_draft_head(model: TinyModel, index: int) -> list[tuple[str, tuple[int, ...]]]:
    """A hybrid model's attention must come at this index."""
    hidden = model.hidden_size
    norms = [(f"nextn.{name}.weight", (hidden,)) for name in ("enorm", "hnorm", "shared_head_norm")]
    return [*_shapes_of_layer(model, index), ("nextn.eh_proj.weight", (hidden, 2 * hidden)), *norms]


def _expert_shapes(model: TinyModel) -> list[tuple[str, tuple[int, ...]]]:
    hidden, count, size, shared = model.hidden_size, model.num_experts, model.expert_size, model.shared_size
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("ffn_gate_inp.weight", (count, hidden)),
        ("ffn_gate_exps.weight", (count, size, hidden)),
        ("ffn_up_exps.weight", (count, size, hidden)),
        ("ffn_down_exps.weight", (count, hidden, size)),
    ]
    if shared:
        if model.architecture == "granite_swa":
            shapes += [("ffn_up_shexp.weight", (2 * shared, hidden))]
        else:
            shapes += [(f"ffn_{part}_shexp.weight", (shared, hidden)) for part in ("gate", "up")]
        shapes += [("ffn_down_shexp.weight", (hidden, shared))]
    if model.architecture in ("qwen2moe", "qwen35moe", "qwen3next"):
        shapes += [("ffn_gate_inp_shexp.weight", (hidden,))]
    if model.architecture in _WITH_SELECTION_BIAS:
        shapes += [("exp_probs_b.bias", (count,))]
    if model.architecture == "gpt-oss":
        shapes += [("attn_sinks.weight", (model.num_heads,)), ("attn_output.bias", (hidden,))]
        shapes += [("ffn_gate_inp.bias", (count,)), ("ffn_down_exps.bias", (count, hidden))]
        shapes += [(f"ffn_{part}_exps.bias", (count, size)) for part in ("gate", "up")]
    return shapes


def _layer_shapes(
    model: TinyModel, hidden: int, size: int, heads: int, kv_heads: int
) -> list[tuple[str, tuple[int, ...]]]:
    shapes: list[tuple[str, tuple[int, ...]]] = [
        *((name, (hidden,)) for name in _norms_before(model)),
        *([("attn_sinks.weight", (model.num_heads,))] if model.architecture == "granite_swa" else []),
        ("attn_output.weight", (hidden, heads)),
        ("ffn_down.weight", (hidden, size)),
    ]
    if model.architecture in ("phi3", "glm4", "chatglm"):
        shapes += [("ffn_up.weight", (2 * size, hidden))]
    elif model.architecture in _WITHOUT_GATE:
        shapes += [("ffn_up.weight", (size, hidden))]
    else:
        shapes += [("ffn_gate.weight", (size, hidden)), ("ffn_up.weight", (size, hidden))]
    rows = {"q": heads, "k": kv_heads, "v": kv_heads}
    biased = rows | ({"output": hidden} if model.architecture == "pangu-embedded" else {})
    if model.architecture in _WITH_FUSED_ATTENTION:
        shapes += [("attn_qkv.weight", (heads + 2 * kv_heads, hidden))]
    else:
        shapes += [(f"attn_{part}.weight", (count, hidden)) for part, count in rows.items()]
    if model.architecture in ("chatglm", "qwen"):
        shapes += [("attn_qkv.bias", (heads + 2 * kv_heads,))]
    if model.architecture in _WITH_BIASES:
        matrices = [(name, shape) for name, shape in shapes if len(shape) == 2]
        matrices = [each for each in matrices if not model.num_experts or each[0].startswith("attn_")]
        shapes += [(name.replace("weight", "bias"), shape[:1]) for name, shape in matrices]
    if model.architecture in (*LAYER_NORMS, "phimoe"):
        shapes += [(f"{name}.bias", (hidden,)) for name in _biased_norms(model)]
    if model.architecture == "afmoe":
        shapes += [("attn_gate.weight", (heads, hidden))]
    if model.architecture in (
        "glm4",
        "glm4moe",
        "gpt-oss",
        "pangu-embedded",
        "qwen2",
        "qwen2moe",
        "qwen2vl",
        "seed_oss",
    ):
        shapes += [(f"attn_{part}.bias", (count,)) for part, count in biased.items()]
    if model.architecture in ("olmo2", "olmoe", "minimax-m2"):
        shapes += [("attn_q_norm.weight", (heads,)), ("attn_k_norm.weight", (kv_heads,))]
    if model.architecture in _WITH_HEAD_NORMS:
        shapes += [(f"attn_{part}_norm.weight", (model.head_size,)) for part in "qk"]
    if model.architecture in ("gemma2", "gemma3", "glm4", "olmo2", "exaone4", "afmoe"):
        shapes += [("post_attention_norm.weight", (hidden,)), ("post_ffw_norm.weight", (hidden,))]
    return shapes


def _biased_norms(model: TinyModel) -> list[str]:
    return [name.removesuffix(".weight") for name in _norms_before(model)]


def _norms_before(model: TinyModel) -> tuple[str, ...]:
    """Of attention and feed-forward."""
    architecture = model.architecture
    if architecture in ("olmo", "olmo2", "exaone4"):
        return ()
    if architecture in ("cohere2", "command-r", "phi2") or (model.has_one_norm and architecture == "stablelm"):
        return ("attn_norm.weight",)
    if architecture == "falcon":
        return ("attn_norm.weight",) if model.has_one_norm else ("attn_norm.weight", "attn_norm_2.weight")
    return ("attn_norm.weight", "post_attention_norm.weight" if architecture in OTHER_NORM else "ffn_norm.weight")


def write_tensor(
    writer: GGUFWriter, rng: np.random.Generator, model: TinyModel, name: str, shape: tuple[int, ...]
) -> None:
    """A tensor of random numbers, of the type that the model says."""
    if len(shape) == 1 or name.endswith("bias") or is_mixer_float(name):
        values = rng.normal(0 if name.endswith("bias") else 1, 0.3, shape).astype(np.float32)
        values = -np.abs(values) if name.endswith("ssm_a") else values  # nothing grows
        kind = GGMLQuantizationType["F32" if is_mixer_float(name) else model.vector_type]
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
        return
    type_name = (model.head_type or model.type) if name in ("token_embd.weight", "output.weight") else model.type
    type_name = "F32" if any(part in name for part in ("ffn_gate_inp", *NEVER_QUANTISED)) else type_name
    kind = GGMLQuantizationType[model.types.get(name, type_name)]
    size = 1.0 if name == "token_embd.weight" else 2.0 / np.sqrt(shape[-1])
    if kind.name in _SCALES_AT or kind.name == "MXFP4":
        rows = int(np.prod(shape[:-1]))
        blocks = _random_blocks(rng, kind, (rows, shape[-1]), size).reshape(*shape[:-1], -1)
        writer.add_tensor(name, blocks, raw_dtype=kind)
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
    if kind is GGMLQuantizationType.NVFP4:
        blocks[..., :4] = 8 * round(np.log2(size)) + 41 + rng.integers(-4, 5, (*blocks.shape[:2], 4))
        return blocks.reshape(shape[0], -1)
    if kind is GGMLQuantizationType.Q8_K:  # which no file has: the kernels do not read it
        return blocks.reshape(shape[0], -1)
    spread = rng.uniform(0.5, 1.5, blocks.shape[:2])
    _set_scales(blocks, kind, spread)
    found = dequantized(kind.name, blocks.reshape(shape[0], -1)).astype(np.float64)
    _set_scales(blocks, kind, spread * size / found.std())
    return blocks.reshape(shape[0], -1)


def _set_scales(blocks: NDArray[np.uint8], kind: GGMLQuantizationType, values: NDArray[np.float64]) -> None:
    for at, times in _SCALES_AT[kind.name].items():
        set_half(blocks, kind.name, at, values * times)
