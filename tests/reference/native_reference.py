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
from gguf.quants import dequantize
from numpy.typing import NDArray

F64 = NDArray[np.float64]

GEMMA = ("gemma", "gemma2", "gemma3")
ADJACENT = ("ernie4_5", "glm4", "granite", "internlm2", "llama", "minicpm", "smollm3")
PERIODS = {"gemma2": 2, "gemma3": 6}
LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}


class NativeReference:
    """One model. `context_size` matters for LongRoPE alone."""

    def __init__(self, path: Path, context_size: int = 512) -> None:
        reader = GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.fields = {name: field.contents() for name, field in reader.fields.items() if "tokenizer" not in name}
        self.architecture: str = self.fields["general.architecture"]
        self.context_size = context_size
        self.num_heads = self.key("attention.head_count")
        self.num_kv_heads = self.key("attention.head_count_kv", self.num_heads)
        self.hidden_size = self.key("embedding_length")
        self.head_size = self.key("attention.key_length", self.hidden_size // self.num_heads)
        self.eps = self.key("attention.layer_norm_rms_epsilon")
        self.weight = cache(self._weight)

    def key(self, suffix: str, default: Any = None) -> Any:
        value = self.fields.get(f"{self.architecture}.{suffix}", default)
        assert value is not None, suffix
        return value

    def scale(self, of: str) -> float:
        usual = {"embedding": 12, "residual": 1.4 / np.sqrt(self.key("block_count")), "logit": 256 / self.hidden_size}
        if self.architecture in ("granite", "minicpm"):
            return self.key(f"{of}_scale", usual[of] if self.architecture == "minicpm" else 1.0)
        return 1.0

    def _weight(self, name: str) -> F64:
        tensor = self.tensors[name]
        return np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float64)

    def linear(self, stem: str, x: F64) -> F64:
        y = x @ self.weight(f"{stem}.weight").T
        return y + self.weight(f"{stem}.bias") if f"{stem}.bias" in self.tensors else y

    def norm(self, stem: str, x: F64) -> F64:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weight(f"{stem}.weight")

    def logits(self, token_ids: list[int], num_rows: int | None = None) -> F64:
        """Rows of the last `num_rows` positions (all if None), shape `(num_rows, vocab_size)`."""
        return self.capped_head(self.hidden(token_ids)[-num_rows if num_rows else 0 :])

    def hidden(self, token_ids: list[int]) -> F64:
        """What the head is multiplied with, of all positions."""
        x = self.embed(token_ids)
        for index in range(self.key("block_count")):
            x = self.layer(index, x)
        return self.norm("output_norm", x)

    def capped_head(self, x: F64) -> F64:
        y = self.head(x) / self.scale("logit")
        cap = self.key("final_logit_softcapping", 0.0)
        return cap * np.tanh(y / cap) if cap else y

    def head(self, x: F64) -> F64:
        """Some rows of the matrix at a time: in float64 a large vocabulary would take gigabytes."""
        stem = "output" if "output.weight" in self.tensors else "token_embd"
        tensor, bias = self.tensors[f"{stem}.weight"], 0.0
        blocks = [
            x @ np.asarray(dequantize(tensor.data[at : at + 16384], tensor.tensor_type), dtype=np.float64).T
            for at in range(0, len(tensor.data), 16384)
        ]
        if f"{stem}.bias" in self.tensors and stem == "output":
            bias = self.weight("output.bias")
        return np.concatenate(blocks, axis=-1) + bias

    def embed(self, token_ids: list[int]) -> F64:
        tensor = self.tensors["token_embd.weight"]
        x = np.asarray(dequantize(tensor.data[token_ids], tensor.tensor_type), dtype=np.float64)
        return x * (np.sqrt(self.hidden_size) if self.architecture in GEMMA else self.scale("embedding"))

    def layer(self, index: int, x: F64) -> F64:
        block, scale = f"blk.{index}", self.scale("residual")
        has_post_norms = self.architecture in ("gemma2", "gemma3", "glm4")
        y = self.attention(index, self.norm(f"{block}.attn_norm", x))
        x = x + (self.norm(f"{block}.post_attention_norm", y) if has_post_norms else y) * scale
        inner_norm = "post_attention_norm" if self.architecture == "seed_oss" else "ffn_norm"
        y = self.feed_forward(block, self.norm(f"{block}.{inner_norm}", x))
        return x + (self.norm(f"{block}.post_ffw_norm", y) if has_post_norms else y) * scale

    def feed_forward(self, block: str, x: F64) -> F64:
        up = self.linear(f"{block}.ffn_up", x)
        if f"{block}.ffn_gate.weight" in self.tensors:
            gate = self.linear(f"{block}.ffn_gate", x)
        else:
            gate, up = np.split(up, 2, axis=-1)
        return self.linear(f"{block}.ffn_down", self.activation(gate) * up)

    def activation(self, x: F64) -> F64:
        if self.architecture in GEMMA:
            return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return x / (1 + np.exp(-x))

    def attention(self, index: int, x: F64) -> F64:
        block, length = f"blk.{index}", len(x)
        if f"{block}.attn_qkv.weight" in self.tensors:
            heads, kv_heads = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
            q, k, v = np.split(self.linear(f"{block}.attn_qkv", x), [heads, heads + kv_heads], axis=-1)
        else:
            q, k, v = (self.linear(f"{block}.attn_{part}", x) for part in "qkv")
        q = q.reshape(length, self.num_heads, self.head_size)
        k = k.reshape(length, self.num_kv_heads, self.head_size)
        v = v.reshape(length, self.num_kv_heads, self.head_size)
        if f"{block}.attn_q_norm.weight" in self.tensors:
            q, k = self.norm(f"{block}.attn_q_norm", q), self.norm(f"{block}.attn_k_norm", k)
        q, k = self.rotate(index, q), self.rotate(index, k)
        mixed = [self.one_head(index, q[:, h], *self.shared(k, v, h)) for h in range(self.num_heads)]
        return self.linear(f"{block}.attn_output", np.concatenate(mixed, axis=-1))

    def shared(self, k: F64, v: F64, head: int) -> tuple[F64, F64]:
        kv_head = head // (self.num_heads // self.num_kv_heads)
        return k[:, kv_head], v[:, kv_head]

    def one_head(self, index: int, q: F64, k: F64, v: F64) -> F64:
        is_27b = self.key("block_count") == LAYERS_OF_27B.get(self.architecture)
        scaled_by = self.hidden_size // self.num_heads if is_27b else self.head_size
        scores = q @ k.T * self.key("attention.scale", 1 / np.sqrt(scaled_by))
        if cap := self.key("attn_logit_softcapping", 0.0):
            scores = cap * np.tanh(scores / cap)
        at = np.arange(len(q))
        distance = at[:, None] - at
        is_seen = distance >= 0
        if self.is_windowed(index):
            is_seen &= distance < self.key("attention.sliding_window")
        scores = np.where(is_seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights @ v / weights.sum(-1, keepdims=True)

    def is_windowed(self, index: int) -> bool:
        period = self.key("attention.sliding_window_pattern", PERIODS.get(self.architecture, 0))
        if isinstance(period, list):
            return bool(period[index])
        return self.architecture in PERIODS and self.key("attention.sliding_window", 0) and index % period < period - 1

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
        if (self.architecture == "smollm3" and index % 4 == 3) or not self.key("rope.scaling.finetuned", True):
            return np.zeros((length, dim // 2)), 1.0
        base, factor = self.key("rope.freq_base", 10000.0), self.key("rope.scale_linear", 1.0)
        factor = self.key("rope.scaling.factor", factor)
        kind, magnitude = self.key("rope.scaling.type", "linear"), self.key("rope.scaling.attn_factor", 1.0)
        if self.architecture == "gemma2" and self.is_windowed(index):
            base = self.key("rope.freq_base_swa", base)
        if self.architecture == "gemma3" and self.is_windowed(index):
            base, factor, kind = self.key("rope.freq_base_swa", 10000.0), 1.0, "none"
        original = self.key("rope.scaling.original_context_length", self.key("context_length"))
        found = np.empty((length, dim // 2))
        for pair in range(dim // 2):
            theta = np.arange(length) * base ** (-2 * pair / dim) / self.divisor(pair, original)
            kept = self.yarn_ramp(pair, dim, base, original) if kind == "yarn" else 0.0
            found[:, pair] = theta / (1.0 if kind == "none" else factor) * (1 - kept) + theta * kept
        if kind == "yarn":
            magnitude *= 0.1 * np.log(factor) + 1
        return found, magnitude

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
