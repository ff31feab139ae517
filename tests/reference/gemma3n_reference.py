"""Gemma 3n in float64 NumPy, after llama.cpp's src/models/gemma3n.cpp: what it has beyond Gemma 4."""

from __future__ import annotations

import numpy as np

from tests.reference.gemma4_reference import Gemma4Reference
from tests.reference.native_reference import F64


class Gemma3nReference(Gemma4Reference):
    """x is `(positions, streams, hidden size)`."""

    def embed(self, token_ids: list[int]) -> F64:
        x = super().embed(token_ids)
        others = [self.as_long_as(x, x @ matrix.T) for matrix in self.weight("altup_proj.weight")]
        return np.stack([x, *others], axis=1)

    def hidden(self, token_ids: list[int]) -> F64:
        x = self.embed(token_ids)
        for index in range(self.key("block_count")):
            x = self.layer(index, x)
        first, matrices = x[:, 0], self.weight("altup_unembd_proj.weight")
        others = [self.as_long_as(first, x[:, 1 + i] @ matrix.T) for i, matrix in enumerate(matrices)]
        return self.norm("output_norm", (first + sum(others)) / (1 + len(others)))

    def as_long_as(self, x: F64, y: F64) -> F64:
        return y * np.linalg.norm(x, axis=-1, keepdims=True) / np.linalg.norm(y, axis=-1, keepdims=True)

    def modalities(self, block: str, x: F64) -> F64:
        n = self.norm(f"{block}.altup_router_norm", x) / self.hidden_size
        return np.tanh(self.linear(f"{block}.altup_router", n))

    def layer(self, index: int, x: F64) -> F64:
        block, streams = f"blk.{index}", x.shape[1]
        mixed = self.linear(f"{block}.altup_predict_coef", self.modalities(block, x[:, 0]))
        predicted = x + np.einsum("tij,tjn->tin", mixed.reshape(-1, streams, streams), x)
        y = self.block(index, predicted[:, 0])
        shares = 1 + self.linear(f"{block}.altup_correct_coef", self.modalities(block, y))
        x = predicted + shares[:, :, None] * (y - predicted[:, 0])[:, None]
        gate = self.linear(f"{block}.inp_gate", x[:, 0] * self.weight(f"{block}.altup_correct_scale.weight"))
        y = self.linear(f"{block}.proj", self.activation(gate) * self.layer_inputs[:, index])
        x[:, 1:] += self.norm(f"{block}.post_norm", y)[:, None]
        return x

    def block(self, index: int, x: F64) -> F64:
        block = f"blk.{index}"
        n = self.norm(f"{block}.attn_norm", x)
        laurel = self.linear(f"{block}.laurel_r", self.linear(f"{block}.laurel_l", n))
        attended = self.norm(f"{block}.post_attention_norm", self.attention(index, n))
        x = (x + attended + n + self.norm(f"{block}.laurel_post_norm", laurel)) / np.sqrt(2)
        n = self.norm(f"{block}.ffn_norm", x)
        gate = self.linear(f"{block}.ffn_gate", n)
        deviations = self.key("activation_sparsity_scale")[index]
        if np.isfinite(deviations):
            cutoff = gate.mean(-1, keepdims=True) + deviations * gate.std(-1, ddof=1, keepdims=True)
            gate = np.maximum(gate - cutoff, 0)
        y = self.linear(f"{block}.ffn_down", self.activation(gate) * self.linear(f"{block}.ffn_up", n))
        return x + self.norm(f"{block}.post_ffw_norm", y)

    def frequencies(self, index: int, half: int) -> F64:
        base = 10000.0 if self.is_windowed(index) else self.key("rope.freq_base")
        return base ** (-np.arange(half) / half)
