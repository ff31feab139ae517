"""EAGLE-3 in float64 NumPy: all positions anew for each guess. Follows llama.cpp's src/models/eagle3.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.reference.native_reference import F64, NativeReference


class Eagle3Reference:
    """A model, and the file that drafts for it from what comes into its layers."""

    def __init__(self, target: Any, path: Path) -> None:
        self.target = target
        self.own = NativeReference(path)
        self.own.hidden_size = self.own.key("embedding_length")

    def guesses(self, token_ids: list[int], count: int, unknown: int | None = None) -> tuple[list[int], F64]:
        """The most likely continuation of a prompt whose last token the model has not seen, and the logits of each.

        Args:
            token_ids: of the prompt, at least two.
            count: tokens.
            unknown: position of which the file was not told the state before it.
        """
        states = list(self.fused(self.features(token_ids[:-1])))
        if unknown is not None:
            states[unknown - 1] = np.zeros(self.own.hidden_size)
        entries, rows = list(token_ids), list[F64]()
        for _ in range(count):
            last = self.layer(entries[1:], np.stack(states))[-1]
            rows.append(self.logits(last))
            entries.append(int(rows[-1].argmax()))
            states.append(last)
        return entries[len(token_ids) :], np.stack(rows)

    def features(self, token_ids: list[int]) -> F64:
        """What comes into the layers that the file names, `(positions, layers * hidden_size)`."""
        x, inputs = self.target.embed(token_ids), list[F64]()
        for index in range(self.target.key("block_count")):
            inputs.append(x)
            x = self.target.layer(index, x)
        return np.concatenate([inputs[index] for index in self.own.key("target_layers")], axis=-1)

    def fused(self, features: F64) -> F64:
        if self.own.key("norm_before_fc"):
            features = self.own.norm("enc.output_norm", features)
        return self.own.linear("fc", features)

    def layer(self, token_ids: list[int], states: F64) -> F64:
        own = self.own
        if "token_embd.weight" in own.tensors:
            embedded = own.embed(token_ids)
        else:  # as it stands in the file of the model, whatever that multiplies it with
            embedded = self.target.weight("token_embd.weight")[token_ids]
        normed = own.norm("blk.0.attn_norm_2", states)
        both = np.concatenate([own.norm("blk.0.attn_norm", embedded), normed], axis=-1)
        x = (normed if own.key("norm_before_residual") else states) + own.attention(0, both)
        return x + own.feed_forward("blk.0", own.norm("blk.0.ffn_norm", x))

    def logits(self, state: F64) -> F64:
        """Of all tokens of the model; those that the file does not have are impossible."""
        normed = self.own.norm("output_norm", state)
        if "output.weight" not in self.own.tensors:
            return self.target.head(normed)
        rows = self.own.head(normed)
        if "d2t" not in self.own.tensors:
            return rows
        found = np.full(len(self.target.tensors["token_embd.weight"].data), -np.inf)
        found[self.own.tensors["d2t"].data] = rows
        return found
