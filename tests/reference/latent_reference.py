"""Attention to latent vectors (DeepSeek V2) in float64 NumPy, after llama.cpp's src/models/deepseek2.cpp, but with keys
and values of each head made from the vectors, as papers write it.
"""

from __future__ import annotations

import numpy as np

from tests.reference.native_reference import F64, NativeReference


class LatentReference(NativeReference):
    def attention(self, index: int, x: F64) -> F64:
        block, length, num = f"blk.{index}", len(x), self.num_heads[index]
        rotated = self.key("rope.dimension_count")
        if f"{block}.attn_q_a.weight" in self.tensors:
            narrow = self.norm(f"{block}.attn_q_a_norm", self.linear(f"{block}.attn_q_a", x))
            q = self.linear(f"{block}.attn_q_b", narrow)
        else:
            q = self.linear(f"{block}.attn_q", x)
        q = q.reshape(length, num, -1)
        both = self.linear(f"{block}.attn_kv_a_mqa", x)
        latent = self.norm(f"{block}.attn_kv_a_norm", both[:, :-rotated])
        k_rotated = self.turned(index, both[:, None, -rotated:])[:, 0]
        q_rotated = self.turned(index, q[..., -rotated:])
        keys, values = self.of_heads(block, q.shape[-1] - rotated)
        seen = np.tril(np.ones((length, length), dtype=bool))
        heads = list[F64]()
        for head in range(num):
            k, v = latent @ keys[head], latent @ values[head].T
            scores = (q[:, head, :-rotated] @ k.T + q_rotated[:, head] @ k_rotated.T) * self.latent_scale()
            weights = np.exp(np.where(seen, scores - scores.max(-1, keepdims=True), -np.inf))
            heads.append(weights @ v / weights.sum(-1, keepdims=True))
        return self.linear(f"{block}.attn_output", np.concatenate(heads, axis=-1))

    def of_heads(self, block: str, plain: int) -> tuple[F64, F64]:
        """What makes keys and values of each head: `(heads, vector, plain)` and `(heads, value, vector)`."""
        if f"{block}.attn_kv_b.weight" not in self.tensors:
            return self.weight(f"{block}.attn_k_b.weight"), self.weight(f"{block}.attn_v_b.weight")
        both = self.weight(f"{block}.attn_kv_b.weight")
        both = both.reshape(self.num_heads[0], -1, both.shape[-1])
        return both[:, :plain].transpose(0, 2, 1), both[:, plain:]

    def turned(self, index: int, x: F64) -> F64:
        angles, own_magnitude = self.angles(index, x.shape[-1], len(x))
        has_multiplier = self.key("rope.scaling.yarn_log_multiplier", 0.0) or self.factor() == 1
        magnitude = 1.0 if has_multiplier else 1 + 0.1 * np.log(self.factor())
        cos, sin = (f(angles)[:, None, :] * magnitude for f in (np.cos, np.sin))
        if self.architecture == "minicpm3":
            cos, sin = cos * own_magnitude, sin * own_magnitude
            first, second = np.split(x, 2, axis=-1)
            return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
        y = np.empty_like(x)
        y[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        y[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
        return y

    def latent_scale(self) -> float:
        magnitude = 1 + (self.key("rope.scaling.yarn_log_multiplier", 0.0) or 0.1) * np.log(self.factor())
        return magnitude**2 / np.sqrt(self.key("attention.key_length_mla", self.key("attention.key_length")))

    def factor(self) -> float:
        return self.key("rope.scaling.factor", 1.0)
