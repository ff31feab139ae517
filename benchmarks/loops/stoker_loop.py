"""Stoker's `LLM` behind the loop of `loop.py`; `STOKER_LOOP_BACKEND` names the backend."""

from __future__ import annotations

import os
from typing import Any

from loop import Answer, serve_loop

_MAX_SEQUENCES = 64
_KV_TOKENS = 16_384


def load(model: str, threads: int) -> Answer:
    from stoker import LLM, SamplingParams

    backend: Any = os.environ.get("STOKER_LOOP_BACKEND", "auto")
    llm = LLM(model, backend=backend, threads=threads, parallel=_MAX_SEQUENCES, kv_tokens=_KV_TOKENS)

    def answer(prompts: list[str], max_tokens: int) -> int:
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        return sum(completion.usage.completion_tokens for completion in llm.generate(prompts, sampling))

    return answer


if __name__ == "__main__":
    serve_loop(load)
