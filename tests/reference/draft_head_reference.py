"""A draft head in float64 NumPy: all positions anew for each guess. Follows llama.cpp's graphs `DECODER_MTP`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.reference.latent_reference import LatentReference
from tests.reference.native_reference import F64, NativeReference


class DraftHeadReference:
    """The head of a file, and the layers before it."""

    def __init__(self, path: Path) -> None:
        reference = NativeReference(path)
        self.model = LatentReference(path) if reference.architecture == "deepseek2" else reference
        self.index: int = self.model.key("block_count") - self.model.key("nextn_predict_layers")

    def guesses(self, token_ids: list[int], count: int, unknown: int = 0) -> tuple[list[int], F64]:
        """The most likely continuation of a prompt whose last token the model has not seen, and the logits of each.

        Args:
            token_ids: of the prompt.
            count: tokens.
            unknown: position of which the head was not told the hidden state before it.
        """
        states = [np.zeros(self.model.hidden_size), *self.trunk(token_ids[:-1])]
        states[unknown] = np.zeros(self.model.hidden_size)
        entries, rows = list(token_ids), list[F64]()
        for _ in range(count):
            last = self.head(entries, np.stack(states))[-1]
            rows.append(self.model.capped_head(last))
            entries.append(int(rows[-1].argmax()))
            states.append(last)
        return entries[len(token_ids) :], np.stack(rows)

    def trunk(self, token_ids: list[int]) -> F64:
        x = self.model.embed(token_ids)
        for index in range(self.index):
            x = self.model.layer(index, x)
        return self.model.norm("output_norm", x)

    def head(self, token_ids: list[int], states: F64) -> F64:
        stem = f"blk.{self.index}.nextn"
        both = [self.model.norm(f"{stem}.enorm", self.model.embed(token_ids)), self.model.norm(f"{stem}.hnorm", states)]
        x = self.model.linear(f"{stem}.eh_proj", np.concatenate(both, axis=-1))
        return self.model.norm(f"{stem}.shared_head_norm", self.model.layer(self.index, x))
