"""Encoders in float64 NumPy, slow and obvious: what the native executor's embeddings and libllama's are held against.

It reads the file on its own (with the `gguf` package) and shares no code with what it checks.
"""

from __future__ import annotations

from functools import cache
from math import erf
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray

from tests.small_types import dequantized

F64 = NDArray[np.float64]

POST_NORMS = ("bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3")
ROTATED = ("nomic-bert", "nomic-bert-moe", "jina-bert-v3", "modern-bert", "gemma-embedding", "eurobert", "neo-bert")
RMS = ("gemma-embedding", "eurobert", "neo-bert")
_erf = np.vectorize(erf, otypes=[np.float64])


def gelu(x: F64) -> F64:
    return 0.5 * x * (1 + _erf(x / np.sqrt(2)))


class EncoderReference:
    """One model."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.fields = {name: field.contents() for name, field in reader.fields.items() if "tokenizer" not in name}
        self.architecture: str = self.fields["general.architecture"]
        self.num_heads: int = self.key("attention.head_count")
        self.num_kv_heads: int = self.key("attention.head_count_kv")
        self.head_size: int = self.key("attention.key_length")
        self.is_rms = self.architecture in RMS
        self.weight = cache(self._weight)

    def key(self, suffix: str, default: Any = None) -> Any:
        return self.fields.get(f"{self.architecture}.{suffix}", default)

    def _weight(self, name: str) -> F64:
        tensor = self.tensors[name]
        return np.asarray(dequantized(tensor.tensor_type.name, tensor.data), dtype=np.float64)

    def linear(self, stem: str, x: F64) -> F64:
        y = x @ self.weight(f"{stem}.weight").T
        return y + self.weight(f"{stem}.bias") if f"{stem}.bias" in self.tensors else y

    def norm(self, stem: str, x: F64, *, is_rms: bool | None = None) -> F64:
        if f"{stem}.weight" not in self.tensors:
            return x
        if not (self.is_rms if is_rms is None else is_rms):
            x = x - x.mean(-1, keepdims=True)
        eps = self.key("attention.layer_norm_rms_epsilon", self.key("attention.layer_norm_epsilon"))
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * self.weight(f"{stem}.weight")
        return y + self.weight(f"{stem}.bias") if f"{stem}.bias" in self.tensors else y

    def embedding(self, token_ids: list[int], pooling: str) -> F64:
        """Not normalised."""
        hidden = self.hidden(token_ids)
        x = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling]
        if "dense_2.weight" in self.tensors:
            x = self.linear("dense_3", self.linear("dense_2", x))
        return x

    def score(self, token_ids: list[int]) -> float:
        """The classifier's, with two labels the first one's above the second's."""
        hidden = self.hidden(token_ids)
        is_modern = self.architecture == "modern-bert"
        x = self.linear("cls", hidden.mean(0) if is_modern else hidden[0])
        x = self.norm("cls.norm", gelu(x), is_rms=False) if is_modern else np.tanh(x)
        scores = self.linear("cls.output", x) if "cls.output.weight" in self.tensors else x
        return float(scores[0] - (np.log(np.exp(scores[1:]).sum()) if len(scores) > 1 else 0.0))

    def hidden(self, token_ids: list[int]) -> F64:
        tensor = self.tensors["token_embd.weight"]
        x = np.asarray(dequantized(tensor.tensor_type.name, tensor.data[token_ids]), dtype=np.float64)
        if "token_types.weight" in self.tensors:
            x = x + self.weight("token_types.weight")[0]
        if "position_embd.weight" in self.tensors:
            x = x + self.weight("position_embd.weight")[: len(x)]
        if self.architecture == "gemma-embedding":
            x = x * np.sqrt(x.shape[1])
        x = self.norm("token_embd_norm", x)
        for index in range(self.key("block_count")):
            x = self.post_layer(index, x) if self.architecture in POST_NORMS else self.layer(index, x)
        return self.norm("enc.output_norm", self.norm("output_norm", x))

    def post_layer(self, index: int, x: F64) -> F64:
        block = f"blk.{index}"
        x = self.norm(f"{block}.attn_output_norm", x + self.attention(index, x))
        return self.norm(f"{block}.layer_output_norm", x + self.feed_forward(block, x))

    def layer(self, index: int, x: F64) -> F64:
        block = f"blk.{index}"
        y = self.attention(index, self.norm(f"{block}.attn_norm", x))
        x = x + self.norm(f"{block}.post_attention_norm", y)
        return x + self.norm(f"{block}.post_ffw_norm", self.feed_forward(block, self.norm(f"{block}.ffn_norm", x)))

    def feed_forward(self, block: str, x: F64) -> F64:
        if f"{block}.ffn_gate_inp.weight" in self.tensors:
            return np.stack([self.experts(block, row) for row in x])
        up = self.linear(f"{block}.ffn_up", x)
        if f"{block}.ffn_gate.weight" in self.tensors:
            up = self.activation(self.linear(f"{block}.ffn_gate", x)) * up
        elif self.architecture in ("modern-bert", "neo-bert", "jina-bert-v2"):
            gate, up = np.split(up, 2, axis=-1)
            up = self.activation(gate) * up
        else:
            up = gelu(up)
        return self.linear(f"{block}.ffn_down", up)

    def experts(self, block: str, x: F64) -> F64:
        """Of one row, with weights that are left as they are."""
        weights = np.exp(self.linear(f"{block}.ffn_gate_inp", x))
        weights /= weights.sum()
        chosen = np.argsort(-weights, kind="stable")[: self.key("expert_used_count")]
        up, down = (self.weight(f"{block}.ffn_{part}_exps.weight") for part in ("up", "down"))
        return np.sum([weights[e] * (down[e] @ gelu(up[e] @ x)) for e in chosen], axis=0)

    def activation(self, x: F64) -> F64:
        if self.architecture == "gemma-embedding":
            return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        if self.architecture == "jina-bert-v2" or self.key("hidden_activation", "gelu") == "gelu" == self.gelu_named():
            return gelu(x)
        return x / (1 + np.exp(-x))

    def gelu_named(self) -> str:
        return "gelu" if self.architecture == "modern-bert" else "silu"

    def attention(self, index: int, x: F64) -> F64:
        block, length = f"blk.{index}", len(x)
        heads, kv_heads = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        if f"{block}.attn_qkv.weight" in self.tensors:
            q, k, v = np.split(self.linear(f"{block}.attn_qkv", x), [heads, heads + kv_heads], axis=-1)
        else:
            q, k, v = (self.linear(f"{block}.attn_{part}", x) for part in "qkv")
        q, k, v = (part.reshape(length, -1, self.head_size) for part in (q, k, v))
        q, k = self.norm(f"{block}.attn_q_norm", q), self.norm(f"{block}.attn_k_norm", k)
        q, k = self.rotated(index, q), self.rotated(index, k)
        group = self.num_heads // self.num_kv_heads
        found = [self.one_head(index, h, q[:, h], k[:, h // group], v[:, h // group]) for h in range(self.num_heads)]
        return self.linear(f"{block}.attn_output", np.concatenate(found, axis=-1))

    def one_head(self, index: int, head: int, q: F64, k: F64, v: F64) -> F64:
        at = np.arange(len(q))
        distance = np.abs(at[:, None] - at)
        scores = q @ k.T / np.sqrt(self.head_size)
        if self.architecture == "jina-bert-v2":
            scores -= self.slope(head) * distance
        if self.is_windowed(index):
            scores[distance > self.key("attention.sliding_window") // 2] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ v

    def slope(self, head: int) -> float:
        """Attention with linear biases, https://arxiv.org/abs/2108.12409, as for a number of heads that is no power."""
        power = 1 << (self.num_heads.bit_length() - 1)
        return 2 ** (-8 / power * (head + 1)) if head < power else 2 ** (-4 / power * (2 * (head - power) + 1))

    def is_windowed(self, index: int) -> bool:
        if not self.key("attention.sliding_window", 0):
            return False
        if self.architecture == "modern-bert":
            return index % 3 != 0
        return self.architecture == "gemma-embedding" and index % 6 < 5

    def rotated(self, index: int, x: F64) -> F64:
        if self.architecture not in ROTATED:
            return x
        base = self.key("rope.freq_base")
        if self.is_windowed(index):
            base = self.key("rope.freq_base_swa", 10000.0)
        half = self.head_size // 2
        angles = np.arange(len(x))[:, None, None] * base ** (-np.arange(half) / half)
        first, second = slice(0, half), slice(half, None)
        if self.architecture == "neo-bert":
            first, second = slice(0, None, 2), slice(1, None, 2)
        y = np.empty_like(x)
        y[..., first] = x[..., first] * np.cos(angles) - x[..., second] * np.sin(angles)
        y[..., second] = x[..., first] * np.sin(angles) + x[..., second] * np.cos(angles)
        return y
