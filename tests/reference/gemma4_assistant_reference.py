"""Gemma 4's assistant in float64 NumPy, one guess at a time. Follows llama.cpp's src/models/gemma4-assistant.cpp."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.reference.gemma4_reference import Gemma4Reference
from tests.reference.native_reference import F64


class AssistantReference:
    """A model, and the file that drafts for it from its keys, values and last hidden state."""

    def __init__(self, target: Path, path: Path) -> None:
        self.target, self.own = Gemma4Reference(target), Gemma4Reference(path)

    def guesses(self, token_ids: list[int], count: int) -> tuple[list[int], F64]:
        """The most likely continuation of a prompt whose last token the model has not seen, and the logits of each.

        Args:
            token_ids: of the prompt, at least two.
            count: tokens, each guessed at the position of the last one of the prompt.
        """
        state = self.target.hidden(token_ids[:-1])[-1]
        entries, rows = list(token_ids), list[F64]()
        for _ in range(count):
            embedded = self.target.weight("token_embd.weight")[entries[-1]] * np.sqrt(self.target.hidden_size)
            x = self.own.linear("nextn.pre_projection", np.concatenate([embedded, state]))
            for index in range(self.own.key("block_count")):
                x = self.layer(index, x, len(token_ids) - 1)
            normed = self.own.norm("output_norm", x)
            rows.append(self.own.weight("token_embd.weight") @ normed)
            entries.append(int(rows[-1].argmax()))
            state = self.own.linear("nextn.post_projection", normed)
        return entries[len(token_ids) :], np.stack(rows)

    def layer(self, index: int, x: F64, position: int) -> F64:
        own, block = self.own, f"blk.{index}"
        y = self.attention(index, own.norm(f"{block}.attn_norm", x), position)
        x = x + own.norm(f"{block}.post_attention_norm", y)
        n = own.norm(f"{block}.ffn_norm", x)
        active = own.activation(own.linear(f"{block}.ffn_gate", n)) * own.linear(f"{block}.ffn_up", n)
        x = x + own.norm(f"{block}.post_ffw_norm", own.linear(f"{block}.ffn_down", active))
        return x * own.weight(f"{block}.layer_output_scale.weight")

    def attention(self, index: int, n: F64, position: int) -> F64:
        """Of a row at a position that has no key; its window counts it."""
        own, block, num = self.own, f"blk.{index}", self.own.num_heads[index]
        q = own.norm(f"{block}.attn_q_norm", own.linear(f"{block}.attn_q", n).reshape(num, -1))
        q = own.rotate(index, np.repeat(q[None], position + 1, axis=0))[-1]
        keys, values = self.target.keys[self.lender(index)]
        window = own.key("attention.sliding_window") if own.is_windowed(index) else position + 1
        first = max(0, position + 1 - window)
        group, heads = num // keys.shape[1], list[F64]()
        for head in range(num):
            scores = keys[first:position, head // group] @ q[head]
            weights = np.exp(scores - scores.max())
            heads.append(weights @ values[first:position, head // group] / weights.sum())
        return own.linear(f"{block}.attn_output", np.concatenate(heads))

    def lender(self, index: int) -> int:
        """The last layer of the model with keys of its own that sees as much as this one."""
        wanted = bool(self.own.is_windowed(index))
        return max(layer for layer in self.target.keys if bool(self.target.is_windowed(layer)) == wanted)
