"""libllama driven one prompt at a time, as plainly as can be: what the engine's answers are compared with.

One context per prompt, one sequence in it, the prompt as one batch, then single tokens, greedily.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stoker.backends.llama.native import library


@dataclass(frozen=True)
class Answer:
    """`logits[i]` is the row that `token_ids[i]` was taken from. An end-of-generation token is in `token_ids` only."""

    token_ids: list[int]
    text: str
    logits: NDArray[np.float32]


class LibllamaReference:
    def __init__(self, path: Path, *, max_ubatch_tokens: int | None = None) -> None:
        self.max_ubatch_tokens = max_ubatch_tokens
        self.lib = library()
        params = self.lib.llama_model_default_params()
        params.use_extra_bufts = False  # see `_has_amx` in backends/llama/weights.py
        self.model = self.lib.llama_model_load_from_file(os.fsencode(path), params)
        self.vocab = self.lib.llama_model_get_vocab(self.model)

    def close(self) -> None:
        self.lib.llama_model_free(self.model)

    def tokenize(self, text: str) -> list[int]:
        raw = text.encode()
        token_ids = (self.lib.llama_token * (len(raw) + 2))()
        count = self.lib.llama_tokenize(self.vocab, raw, len(raw), token_ids, len(token_ids), True, True)
        return token_ids[:count]

    def answer(self, prompt: str | list[int], max_tokens: int) -> Answer:
        prompt_ids = self.tokenize(prompt) if isinstance(prompt, str) else prompt
        params = self.lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = len(prompt_ids) + max_tokens
        if self.max_ubatch_tokens is not None:
            params.n_ubatch = self.max_ubatch_tokens
        params.n_threads = params.n_threads_batch = 1
        context = self.lib.llama_init_from_model(self.model, params)
        token_ids: list[int] = []
        rows: list[NDArray[np.float32]] = []
        pending = prompt_ids
        while len(token_ids) < max_tokens:
            array = (self.lib.llama_token * len(pending))(*pending)
            assert self.lib.llama_decode(context, self.lib.llama_batch_get_one(array, len(pending))) == 0
            logits = self.lib.llama_get_logits_ith(context, -1)
            rows.append(np.ctypeslib.as_array(logits, shape=(self.lib.llama_vocab_n_tokens(self.vocab),)).copy())
            pending = [int(rows[-1].argmax())]
            token_ids += pending
            if self.lib.llama_vocab_is_eog(self.vocab, pending[0]):
                break
        self.lib.llama_free(context)
        return Answer(token_ids, self.text(token_ids), np.stack(rows))

    def text(self, token_ids: list[int]) -> str:
        raw = b""
        for token_id in token_ids:
            buffer = (self.lib.ctypes.c_char * 256)()
            size = self.lib.llama_token_to_piece(self.vocab, token_id, buffer, len(buffer), 0, False)
            raw += buffer.raw[:size] if not self.lib.llama_vocab_is_eog(self.vocab, token_id) else b""
        return raw.decode("utf-8", errors="replace")
