"""Decoders in float64 NumPy, slow and obvious: what the native executor's and libllama's logits are held against.

It reads the file on its own (with the `gguf` package) and shares no code with what it checks. No cache, no batch: the
whole prompt at once. Follows the graphs of llama.cpp (src/models/*.cpp) and ggml's `rope_yarn`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray

from tests.reference.recurrent_reference import mixed
from tests.small_types import dequantized
from tests.tiny_models import LAYER_NORMS

F64 = NDArray[np.float64]

GEMMA = ("gemma", "gemma2", "gemma3")
ADJACENT = (
    "arcee",
    "baichuan",
    "bailingmoe",
    "chatglm",
    "cohere2",
    "command-r",
    "deci",
    "deepseek",
    "deepseek2",
    "eagle3",
    "maincoder",
    "ernie4_5",
    "ernie4_5-moe",
    "glm4",
    "granite",
    "granite_swa",
    "granitehybrid",
    "granitemoe",
    "internlm2",
    "llama",
    "llama4",
    "minicpm",
    "mistral3",
    "nanbeige",
    "olmo",
    "plm",
    "smollm3",
    "xverse",
)
POST_NORMS = ("gemma2", "gemma3", "glm4", "olmo2", "exaone4", "afmoe")
OTHER_NORM = ("glm4moe", "gpt-oss", "seed_oss", "qwen35", "qwen35moe", "qwen3next")
HEAD_NORMS = (
    "afmoe",
    "apertus",
    "bailingmoe2",
    "dots1",
    "exaone-moe",
    "mellum",
    "qwen3vlmoe",
    "qwen3",
    "qwen3moe",
    "qwen3vl",
    "gemma3",
    "exaone4",
    "lfm2",
    "lfm2moe",
    "qwen35",
    "qwen35moe",
    "qwen3next",
)
LATE_HEAD_NORMS = ("hunyuan-dense", "hunyuan-moe", "hunyuan_vl", "maincoder")
WHOLE_NORMS = ("olmo2", "olmoe", "minimax-m2")
PERIODS = {
    "gpt-oss": 2,
    "gemma2": 2,
    "gemma3": 6,
    "olmo2": 4,
    "cohere2": 4,
    "exaone4": 4,
    "exaone-moe": 4,
    "mellum": 4,
    "afmoe": 4,
    "llama4": 4,
}
AS_SAID = (
    "jamba",
    "qwen2moe",
    "olmoe",
    "deepseek",
    "deepseek2",
    "bailingmoe",
    "bailingmoe2",
    "dots1",
    "exaone-moe",
    "afmoe",
)
"""Whose weights of experts add up to 1 only if the file says so."""
SIGMOID = ("llama4", "glm4moe", "lfm2moe", "nemotron_h_moe", "afmoe")
SQUARED_RELU = ("nemotron_h", "nemotron_h_moe", "arcee", "jais2", "nemotron", "plm")
WITHOUT_ROPE = ("gpt2", "starcoder")
LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}


def gelu_tanh(x: F64) -> F64:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


class NativeReference:
    """One model. `context_size` matters for LongRoPE alone."""

    def __init__(self, path: Path, context_size: int = 512) -> None:
        reader = GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.fields = {name: field.contents() for name, field in reader.fields.items() if "tokenizer" not in name}
        self.architecture: str = self.fields["general.architecture"]
        self.context_size = context_size
        self.num_heads = self.of_layers("attention.head_count")
        self.num_kv_heads = self.of_layers("attention.head_count_kv", self.num_heads)
        self.hidden_size = self.key("embedding_length")
        self.head_size = self.key("attention.key_length", self.hidden_size // max(*self.num_heads, 1))
        self.takes_mean = self.architecture in ("cohere2", "command-r", "olmo", *LAYER_NORMS)
        self.eps = self.key("attention.layer_norm_epsilon" if self.takes_mean else "attention.layer_norm_rms_epsilon")
        self.weight = cache(self._weight)
        self.rows: dict[int, F64] = {}
        """By place, what stands there instead of a token."""
        self.sees_to: dict[int, int] = {}
        """By place, the end of what it sees, if that is behind it."""
        self.positions: F64 | None = None
        """Of each place along time, rows and columns, `(places, 3)`; None = the place."""

    def key(self, suffix: str, default: Any = None) -> Any:
        value = self.fields.get(f"{self.architecture}.{suffix}", default)
        assert value is not None, suffix
        return value

    def of_layers(self, suffix: str, default: Any = None) -> list[int]:
        value = self.key(suffix, default)
        return value if isinstance(value, list) else [value] * self.key("block_count")

    def scale(self, of: str) -> float:
        usual = {"embedding": 12, "residual": 1.4 / np.sqrt(self.key("block_count")), "logit": 256 / self.hidden_size}
        if self.architecture == "minicpm3":
            return {**usual, "logit": self.hidden_size / 256}[of]
        if of == "logit" and self.architecture in ("cohere2", "command-r"):
            return 1 / self.key("logit_scale")
        if self.architecture in ("granite", "granite_swa", "granitehybrid", "granitemoe", "minicpm"):
            return self.key(f"{of}_scale", usual[of] if self.architecture == "minicpm" else 1.0)
        return 1.0

    def _weight(self, name: str) -> F64:
        tensor = self.tensors[name]
        return np.asarray(dequantized(tensor.tensor_type.name, tensor.data), dtype=np.float64)

    def linear(self, stem: str, x: F64) -> F64:
        y = x @ self.weight(f"{stem}.weight").T
        y = y * self.weight(f"{stem}.scale") if f"{stem}.scale" in self.tensors else y
        return y + self.weight(f"{stem}.bias") if f"{stem}.bias" in self.tensors else y

    def norm(self, stem: str, x: F64) -> F64:
        if self.takes_mean:
            x = x - x.mean(-1, keepdims=True)
        without = self.architecture == "olmo"
        weight = 1.0 if without else self.weight(stem if stem in self.tensors else f"{stem}.weight")
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * weight
        return y + self.weight(f"{stem}.bias") if f"{stem}.bias" in self.tensors else y

    def logits(self, token_ids: list[int], num_rows: int | None = None) -> F64:
        """Rows of the last `num_rows` positions (all if None), shape `(num_rows, vocab_size)`."""
        return self.capped_head(self.hidden(token_ids)[-num_rows if num_rows else 0 :])

    def hidden(self, token_ids: list[int]) -> F64:
        """What the head is multiplied with, of all positions."""
        x = self.embed(token_ids)
        for turn in range(self.key("num_loops", 1)):
            if turn and not self.key("skip_loop_final_norm", False):
                x = self.norm("output_norm", x)
            for index in range(self.key("block_count")):
                x = self.layer(index, x)
        return self.norm("token_embd_norm" if self.architecture.startswith("lfm2") else "output_norm", x)

    def capped_head(self, x: F64) -> F64:
        y = self.head(x) / self.scale("logit")
        cap = self.key("final_logit_softcapping", 0.0)
        return cap * np.tanh(y / cap) if cap else y

    def head(self, x: F64) -> F64:
        """Some rows of the matrix at a time: in float64 a large vocabulary would take gigabytes."""
        stem = "output" if "output.weight" in self.tensors else "token_embd"
        tensor, bias = self.tensors[f"{stem}.weight"], 0.0
        blocks = [
            x @ np.asarray(dequantized(tensor.tensor_type.name, tensor.data[at : at + 16384]), dtype=np.float64).T
            for at in range(0, len(tensor.data), 16384)
        ]
        if f"{stem}.bias" in self.tensors and stem == "output":
            bias = self.weight("output.bias")
        return np.concatenate(blocks, axis=-1) + bias

    def embed(self, token_ids: list[int]) -> F64:
        tensor = self.tensors["token_embd.weight"]
        x = np.asarray(dequantized(tensor.tensor_type.name, tensor.data[token_ids]), dtype=np.float64)
        x = x * (np.sqrt(self.hidden_size) if self.architecture in (*GEMMA, "afmoe") else self.scale("embedding"))
        if self.architecture in WITHOUT_ROPE:
            x = x + self.weight("position_embd.weight")[: len(x)]
        for place, row in self.rows.items():
            x[place] = row * self.scale("embedding")
        return x

    def layer(self, index: int, x: F64) -> F64:
        block, scale = f"blk.{index}", self.scale("residual")
        if self.architecture == "deci":
            return self.deci_layer(index, x)
        own_norm = "attn_norm_2" if f"{block}.attn_norm_2.weight" in self.tensors else "attn_norm"
        n = self.norm_if_there(f"{block}.{own_norm}", x)
        if self.architecture.startswith("nemotron_h"):
            return x + self.nemotron_block(index, n)
        y = mixed(self, index, n)
        if y is not None and self.architecture in ("mamba", "mamba2"):
            return x + y
        if y is None or self.architecture == "falcon-h1":
            y = self.attention(index, n) + (0.0 if y is None else y)
        if self.architecture in ("cohere2", "command-r") or self.is_parallel(block):
            inner_norm = "ffn_norm" if f"{block}.ffn_norm.weight" in self.tensors else "attn_norm"
            return x + y + self.feed_forward(block, self.norm(f"{block}.{inner_norm}", x))
        has_post_norms, before = self.architecture in POST_NORMS, x
        x = x + (self.norm(f"{block}.post_attention_norm", y) if has_post_norms else y) * scale
        inner_norm = "post_attention_norm" if self.architecture in OTHER_NORM else "ffn_norm"
        n = self.norm_if_there(f"{block}.{inner_norm}", x)
        y = self.chosen_ahead(block, n, before) if self.architecture == "smallthinker" else self.feed_forward(block, n)
        return x + (self.norm(f"{block}.post_ffw_norm", y) if has_post_norms else y) * scale

    def deci_layer(self, index: int, x: F64) -> F64:
        block = f"blk.{index}"
        if self.num_heads[index]:
            n = self.norm(f"{block}.attn_norm", x)
            x = x + (self.attention(index, n) if self.num_kv_heads[index] else self.linear(f"{block}.attn_output", n))
        if f"{block}.ffn_norm.weight" not in self.tensors:
            return x
        return x + self.feed_forward(block, self.norm(f"{block}.ffn_norm", x))

    def is_parallel(self, block: str) -> bool:
        """Whether the feed-forward does not see what attention added."""
        if self.architecture == "gptneox":
            return self.key("use_parallel_residual")
        return self.architecture in LAYER_NORMS and f"{block}.ffn_norm.weight" not in self.tensors

    def nemotron_block(self, index: int, n: F64) -> F64:
        if f"blk.{index}.attn_q.weight" in self.tensors:
            return self.attention(index, n)
        y = mixed(self, index, n)
        return self.feed_forward(f"blk.{index}", n) if y is None else y

    def norm_if_there(self, stem: str, x: F64) -> F64:
        is_there = {stem, f"{stem}.weight"} & self.tensors.keys() or self.architecture == "olmo"
        return self.norm(stem, x) if is_there else x

    def chosen_ahead(self, block: str, x: F64, routed: F64) -> F64:
        return np.stack([self.experts(block, *rows) for rows in zip(x, routed, strict=True)])

    def feed_forward(self, block: str, x: F64) -> F64:
        if f"{block}.ffn_gate_inp.weight" in self.tensors:
            return np.stack([self.experts(block, row) for row in x])
        up = self.linear(f"{block}.ffn_up", x)
        if self.architecture in SQUARED_RELU:
            return self.linear(f"{block}.ffn_down", np.maximum(up, 0) ** 2)
        if self.architecture == "apertus":
            return self.linear(f"{block}.ffn_down", self.xielu(int(block.removeprefix("blk.")), up))
        if f"{block}.ffn_gate.weight" in self.tensors:
            gate = self.linear(f"{block}.ffn_gate", x)
        elif self.architecture in LAYER_NORMS:
            return self.linear(f"{block}.ffn_down", gelu_tanh(up))
        else:
            gate, up = np.split(up, 2, axis=-1)
        inner = self.activation(gate) * up
        inner = self.norm(f"{block}.ffn_sub_norm", inner) if self.architecture == "bitnet" else inner
        return self.linear(f"{block}.ffn_down", inner)

    def experts(self, block: str, x: F64, routed: F64 | None = None) -> F64:
        """Of one row; `routed` is what the router sees, if not x."""
        logits = self.linear(f"{block}.ffn_gate_inp", x if routed is None else routed)
        scores = self.routed(logits)
        bias = self.weight(f"{block}.exp_probs_b.bias") if f"{block}.exp_probs_b.bias" in self.tensors else 0.0
        chosen = np.argsort(-self.of_best_groups(scores + bias), kind="stable")[: self.key("expert_used_count")]
        weights = scores[chosen]
        if self.architecture == "gpt-oss":
            weights = np.exp(weights - weights.max())
        if self.architecture == "llama4":
            weighted = (self.expert(block, e, scores[e] * x) for e in chosen)
            return sum(weighted, np.zeros(len(x))) + self.shared_block(block, x)
        if self.key("expert_weights_norm", self.architecture not in AS_SAID):
            weights = weights / weights.sum()
        weights = weights * self.key("expert_weights_scale", 1.0)
        y = sum((w * self.expert(block, e, x) for w, e in zip(weights, chosen, strict=True)), np.zeros(len(x)))
        return y + self.shared_block(block, x)

    def of_best_groups(self, values: F64) -> F64:
        count = self.key("expert_group_count", 1)
        if count == 1:
            return values
        groups = values.reshape(count, -1)
        order = np.argsort(-np.sort(groups, axis=-1)[:, -2:].sum(-1), kind="stable")
        out = groups.copy()
        out[order[self.key("expert_group_used_count") :]] = -np.inf
        return out.reshape(-1)

    def routed(self, logits: F64) -> F64:
        if self.architecture in SIGMOID or self.key("expert_gating_func", 0) == 2:
            return 1 / (1 + np.exp(-logits))
        if self.architecture == "gpt-oss":
            return logits
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    def expert(self, block: str, index: int, x: F64) -> F64:
        def product(part: str, x: F64) -> F64:
            stem = f"{block}.ffn_{part}_exps"
            y = self.weight(f"{stem}.weight")[index] @ x
            return y + self.weight(f"{stem}.bias")[index] if f"{stem}.bias" in self.tensors else y

        if self.architecture == "nemotron_h_moe":
            return product("down", np.maximum(product("up", x), 0) ** 2)
        gate, up = product("gate", x), product("up", x)
        if self.architecture == "gpt-oss":
            gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
            return product("down", gate / (1 + np.exp(-1.702 * gate)) * (up + 1))
        return product("down", self.activation(gate) * up)

    def shared_block(self, block: str, x: F64) -> F64:
        if f"{block}.ffn_up_shexp.weight" not in self.tensors:
            return np.zeros(len(x))
        up = self.linear(f"{block}.ffn_up_shexp", x)
        if self.architecture == "nemotron_h_moe":
            return self.linear(f"{block}.ffn_down_shexp", np.maximum(up, 0) ** 2)
        if f"{block}.ffn_gate_shexp.weight" in self.tensors:
            gate = self.linear(f"{block}.ffn_gate_shexp", x)
        else:
            gate, up = np.split(up, 2)
        y = self.linear(f"{block}.ffn_down_shexp", self.activation(gate) * up)
        if f"{block}.ffn_gate_inp_shexp.weight" in self.tensors:
            y = y / (1 + np.exp(-(self.weight(f"{block}.ffn_gate_inp_shexp.weight") @ x)))
        return y

    def xielu(self, index: int, x: F64) -> F64:
        def number(name: str) -> float:
            values = self.fields[f"xielu.{name}"]
            return values[index] if isinstance(values, list) else values

        slope = number("beta")
        below, above = (np.log1p(np.exp(number(name))) for name in ("alpha_n", "alpha_p"))
        negative = (np.expm1(np.minimum(x, number("eps"))) - x) * (slope + below)
        return np.where(x > 0, above * x * x, negative) + slope * x

    def activation(self, x: F64) -> F64:
        if self.architecture in GEMMA:
            return gelu_tanh(x)
        if self.architecture == "smallthinker":
            return np.maximum(x, 0)
        return x / (1 + np.exp(-x))

    def attention(self, index: int, x: F64) -> F64:
        block, length = f"blk.{index}", len(x)
        num_heads, num_kv_heads = self.num_heads[index], self.num_kv_heads[index]
        if f"{block}.attn_qkv.weight" in self.tensors:
            heads, kv_heads = num_heads * self.head_size, num_kv_heads * self.head_size
            q, k, v = np.split(self.linear(f"{block}.attn_qkv", x), [heads, heads + kv_heads], axis=-1)
        else:
            q, k, v = (self.linear(f"{block}.attn_{part}", x) for part in "qkv")
        if limit := self.key("attention.clamp_kqv", 0.0):
            q, k, v = (np.clip(part, -limit, limit) for part in (q, k, v))
        norms = [f"{block}.attn_{part}_norm" for part in "qk"]
        if self.architecture in WHOLE_NORMS:  # over all heads as one
            q, k = self.norm(norms[0], q), self.norm(norms[1], k)
        q = q.reshape(length, num_heads, -1)
        q, gate = q[..., : self.head_size], q[..., self.head_size :]  # of half the size, if there is one
        k = k.reshape(length, num_kv_heads, self.head_size)
        v = v.reshape(length, num_kv_heads, self.head_size)
        if self.architecture in HEAD_NORMS:
            q, k = self.norm(norms[0], q), self.norm(norms[1], k)
        q, k = self.rotate(index, q), self.rotate(index, k)
        if self.architecture in LATE_HEAD_NORMS:
            q, k = self.norm(norms[0], q), self.norm(norms[1], k)
        if self.architecture == "llama4" and not self.stands(index) and self.key("expert_count") != 128:
            q, k = (part / np.sqrt((part * part).mean(-1, keepdims=True) + self.eps) for part in (q, k))
        q = q * self.query_scales(index, length)[:, None, None]
        group = num_heads // num_kv_heads
        heads = [self.one_head(index, h, q[:, h], k[:, h // group], v[:, h // group]) for h in range(num_heads)]
        y = np.stack(heads, axis=1)
        if self.architecture == "afmoe":
            gate = self.linear(f"{block}.attn_gate", x).reshape(y.shape)
        if gate.size:
            y = y / (1 + np.exp(-gate))
        y = y.reshape(length, -1)
        y = self.norm(f"{block}.attn_sub_norm", y) if self.architecture == "bitnet" else y
        return self.linear(f"{block}.attn_output", y)

    def query_scales(self, index: int, length: int) -> F64:
        if self.architecture == "llama4":
            return 1 + 0.1 * np.log((np.arange(length) + 1) // 8192 + 1) * self.stands(index)
        slope, period = self.key("attention.temperature_scale", 0.0), self.original_context()
        return 1 + slope * np.log(np.arange(length) // period + 1)

    def original_context(self) -> int:
        return self.key("rope.scaling.original_context_length", self.key("context_length"))

    def one_head(self, index: int, head: int, q: F64, k: F64, v: F64) -> F64:
        is_27b = self.key("block_count") == LAYERS_OF_27B.get(self.architecture)
        scaled_by = self.hidden_size // self.num_heads[index] if is_27b else self.head_size
        scores = q @ k.T * self.key("attention.scale", 1 / np.sqrt(scaled_by))
        if cap := self.key("attn_logit_softcapping", 0.0):
            scores = cap * np.tanh(scores / cap)
        at = np.arange(len(q))
        distance = at[:, None] - at
        if self.has_slopes():
            scores = scores - 2.0 ** (-8 * (head + 1) / self.num_heads[index]) * distance
        ends = np.array([self.sees_to.get(place, 0) for place in range(len(q))])
        is_seen = (distance >= 0) | (at < ends[:, None])
        if self.is_windowed(index):
            size = self.key("attention.sliding_window", 8192)
            is_chunk = at[:, None] // size == at // size
            is_seen &= is_chunk if self.architecture == "llama4" else distance < size
        scores = np.where(is_seen, scores, -np.inf)
        sinks = f"blk.{index}.attn_sinks.weight"
        sink = self.weight(sinks)[head] if sinks in self.tensors else -np.inf
        most = np.maximum(scores.max(-1, keepdims=True), sink)
        weights = np.exp(scores - most)
        return weights @ v / (weights.sum(-1, keepdims=True) + np.exp(sink - most))

    def is_windowed(self, index: int) -> bool:
        period = self.key("attention.sliding_window_pattern", PERIODS.get(self.architecture, 0))
        if isinstance(period, list):
            return bool(period[index])
        if self.architecture == "exaone4" and self.key("block_count") != 64:
            return False
        if self.architecture == "smallthinker":
            return self.key("attention.sliding_window", 0) and index % 4 > 0
        size = self.key("attention.sliding_window", 8192 if self.architecture == "llama4" else 0)
        return self.architecture in PERIODS and size and index % period < period - 1

    def rotate(self, index: int, x: F64) -> F64:
        dim = self.key("rope.dimension_count", self.head_size)
        angles, magnitude = self.angles(index, dim, len(x))
        cos, sin = (f(angles)[:, None, :] * magnitude for f in (np.cos, np.sin))
        y = x.copy()
        first, second = (slice(0, dim, 2), slice(1, dim, 2))
        if self.architecture not in ADJACENT:
            first, second = slice(0, dim // 2), slice(dim // 2, dim)
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., first] * sin + x[..., second] * cos
        return y

    def angles(self, index: int, dim: int, length: int) -> tuple[F64, float]:
        if self.stands(index) or not self.key("rope.scaling.finetuned", True):
            return np.zeros((length, dim // 2)), 1.0
        base, factor = self.key("rope.freq_base", 10000.0), self.key("rope.scale_linear", 1.0)
        factor = self.key("rope.scaling.factor", factor)
        kind, magnitude = self.key("rope.scaling.type", "linear"), self.key("rope.scaling.attn_factor", 1.0)
        if self.architecture == "gemma2" and self.is_windowed(index):
            base = self.key("rope.freq_base_swa", base)
        if self.architecture == "gemma3" and self.is_windowed(index):
            base, factor, kind = self.key("rope.freq_base_swa", 10000.0), 1.0, "none"
        if self.architecture in ("olmo2", "mellum") and self.is_windowed(index):
            base, factor, kind = self.key("rope.freq_base_swa", base), 1.0, "none"
        if self.architecture in ("hunyuan-dense", "hunyuan_vl") and (alpha := self.key("rope.scaling.alpha", 0.0)):
            base *= alpha ** (dim / (dim - 2))
        original = self.original_context()
        found = np.empty((length, dim // 2))
        for pair in range(dim // 2):
            theta = self.along(pair, length) * base ** (-2 * pair / dim) / self.divisor(pair, original)
            kept = self.yarn_ramp(pair, dim, base, original) if kind == "yarn" else 0.0
            found[:, pair] = theta / (1.0 if kind == "none" else factor) * (1 - kept) + theta * kept
        if kind == "yarn":
            magnitude *= 0.1 * np.log(factor) + 1
            magnitude /= 0.1 * self.key("rope.scaling.yarn_log_multiplier", 0.0) * np.log(factor) + 1
        return found, magnitude

    def along(self, pair: int, length: int) -> F64:
        """The positions by which a pair is turned."""
        if self.positions is None:
            return np.arange(length, dtype=np.float64)
        sections = self.key("rope.dimension_sections")
        axis = pair % 3 if self.architecture == "qwen3vl" else np.searchsorted(np.cumsum(sections), pair, side="right")
        if self.architecture == "qwen3vl" and pair >= 3 * sections[axis]:
            axis = 0
        return self.positions[:, axis]

    def has_slopes(self) -> bool:
        return self.architecture == "baichuan" and self.key("block_count") == 40

    def stands(self, index: int) -> bool:
        """Whether a layer rotates nothing."""
        if (
            self.architecture in (*WITHOUT_ROPE, "jamba", "kimi-linear", "nemotron_h", "nemotron_h_moe")
            or self.has_slopes()
        ):
            return True
        if pattern := self.key("attention.rope_pattern", ()):
            return not pattern[index]
        if self.architecture == "exaone4" and self.key("block_count") == 64:
            return not self.is_windowed(index)
        if self.architecture in ("cohere2", "exaone-moe"):
            return not self.is_windowed(index)
        if self.architecture == "smallthinker":
            return bool(self.key("attention.sliding_window", 0)) and index % 4 == 0
        return self.architecture in ("smollm3", "afmoe", "llama4") and index % 4 == 3

    def divisor(self, pair: int, original: int) -> float:
        length = "long" if self.context_size > original else "short"
        for name in ("rope_freqs.weight", f"rope_factors_{length}.weight"):
            if name in self.tensors:
                return float(self.weight(name)[pair])
        return 1.0

    def yarn_ramp(self, pair: int, dim: int, base: float, original: int) -> float:
        def correction(turns: float) -> float:
            return dim * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(base))

        low, high = max(0, np.floor(correction(32))), min(dim - 1, np.ceil(correction(1)))
        return 1 - min(1, max(0, (pair - low) / max(0.001, high - low)))
