"""Gemma 4 in float64 NumPy, after llama.cpp's src/models/gemma4.cpp: what it has beyond the decoders of
`native_reference`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.reference.native_reference import F64, NativeReference


class Gemma4Reference(NativeReference):
    def __init__(self, path: Path, context_size: int = 512) -> None:
        super().__init__(path, context_size)
        self.keys: dict[int, tuple[F64, F64]] = {}
        """Keys and values of the layers so far, `(positions, heads, size)` each."""
        self.layer_inputs = np.zeros(0)
        """`(positions, layers, width)`"""

    def embed(self, token_ids: list[int]) -> F64:
        x = super().embed(token_ids) * np.sqrt(self.hidden_size)
        if width := self.key("embedding_length_per_layer_input", 0):
            shape = (len(x), self.key("block_count"), width)
            found = (x @ self.weight("per_layer_model_proj.weight").T / np.sqrt(self.hidden_size)).reshape(shape)
            table = self.weight("per_layer_token_embd.weight")[token_ids].reshape(shape)
            found = self.norm("per_layer_proj_norm", found)
            self.layer_inputs = (found + np.sqrt(width) * table) / np.sqrt(2)
        return x

    def layer(self, index: int, x: F64) -> F64:
        block = f"blk.{index}"
        x = x + self.norm(f"{block}.post_attention_norm", self.attention(index, self.norm(f"{block}.attn_norm", x)))
        x = x + self.norm(f"{block}.post_ffw_norm", self.beside(block, x))
        if self.layer_inputs.size:
            y = self.activation(self.linear(f"{block}.inp_gate", x)) * self.layer_inputs[:, index]
            x = x + self.norm(f"{block}.post_norm", self.linear(f"{block}.proj", y))
        return x * self.weight(f"{block}.layer_output_scale.weight")

    def activation(self, x: F64) -> F64:
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    def beside(self, block: str, x: F64) -> F64:
        """The dense block, and the experts if there are some."""
        n = self.norm(f"{block}.ffn_norm", x)
        active = self.activation(self.linear(f"{block}.ffn_gate", n)) * self.linear(f"{block}.ffn_up", n)
        y = self.linear(f"{block}.ffn_down", active)
        if f"{block}.ffn_gate_inp.weight" not in self.tensors:
            return y
        routed = self.norm(f"{block}.ffn_gate_inp.scale", x) / np.sqrt(self.hidden_size)
        logits = routed @ self.weight(f"{block}.ffn_gate_inp.weight").T
        inputs = self.norm(f"{block}.pre_ffw_norm_2", x)
        z = np.stack([self.experts_of(block, *row) for row in zip(logits, inputs, strict=True)])
        return self.norm(f"{block}.post_ffw_norm_1", y) + self.norm(f"{block}.post_ffw_norm_2", z)

    def experts_of(self, block: str, logits: F64, x: F64) -> F64:
        chosen = np.argsort(-logits, kind="stable")[: self.key("expert_used_count")]
        weights = np.exp(logits[chosen] - logits.max())
        weights = weights / weights.sum() * self.weight(f"{block}.ffn_down_exps.scale")[chosen]
        gates, down = (self.weight(f"{block}.ffn_{part}_exps.weight") for part in ("gate_up", "down"))
        y = np.zeros(len(x))
        for weight, expert in zip(weights, chosen, strict=True):
            gate, up = np.split(gates[expert] @ x, 2)
            y += weight * (down[expert] @ (self.activation(gate) * up))
        return y

    def attention(self, index: int, x: F64) -> F64:
        block, num = f"blk.{index}", self.num_heads[index]
        q = self.rotate(
            index, self.norm(f"{block}.attn_q_norm", self.linear(f"{block}.attn_q", x).reshape(len(x), num, -1))
        )
        first = self.key("block_count") - self.key("attention.shared_kv_layers", 0)
        if index < first:
            shape = (len(x), self.num_kv_heads[index], -1)
            raw = self.linear(f"{block}.attn_k", x).reshape(shape)
            has_values = f"{block}.attn_v.weight" in self.tensors
            v = self.linear(f"{block}.attn_v", x).reshape(shape) if has_values else raw
            v = v / np.sqrt((v * v).mean(-1, keepdims=True) + self.eps)
            self.keys[index] = self.rotate(index, self.norm(f"{block}.attn_k_norm", raw)), v
            k = self.keys[index][0]
        else:
            k, v = self.keys[first - (2 if self.is_windowed(index) else 1)]
        group = num // k.shape[1]
        y = np.stack([self.plain_head(index, q[:, h], k[:, h // group], v[:, h // group]) for h in range(num)], axis=1)
        return self.linear(f"{block}.attn_output", y.reshape(len(x), -1))

    def plain_head(self, index: int, q: F64, k: F64, v: F64) -> F64:
        distance = np.arange(len(q))[:, None] - np.arange(len(q))
        window = self.key("attention.sliding_window") if self.is_windowed(index) else len(q)
        scores = np.where((distance >= 0) & (distance < window), q @ k.T, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights @ v / weights.sum(-1, keepdims=True)

    def rotate(self, index: int, x: F64) -> F64:
        half = x.shape[-1] // 2
        angles = np.arange(len(x))[:, None, None] * self.frequencies(index, half)
        first, second = x[..., :half], x[..., half:]
        return np.concatenate(
            [first * np.cos(angles) - second * np.sin(angles), first * np.sin(angles) + second * np.cos(angles)],
            axis=-1,
        )

    def frequencies(self, index: int, half: int) -> F64:
        base = self.key("rope.freq_base_swa" if self.is_windowed(index) else "rope.freq_base")
        found = base ** (-np.arange(half) / half)
        return found if self.is_windowed(index) else found / self.weight("rope_freqs.weight")
