"""mistral.rs as a program, see `job.py`."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from job import Generate, answer_job

_MAX_SEQUENCES = 64
_END_TOKENS = {0: -100.0, 2: -100.0}
"""It cannot be told to go on past an end token, so those of `smollm2` are made impossible."""


def load(model: str, threads: int) -> Generate:
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    import mistralrs  # pyright: ignore[reportMissingImports]

    package: Any = mistralrs
    folder, file = os.path.split(model)
    which = package.Which.GGUF(tok_model_id=None, quantized_model_id=folder, quantized_filename=file)
    runner = package.Runner(which=which, max_seqs=_MAX_SEQUENCES)

    def generate(prompts: list[str], output_tokens: int) -> list[tuple[int, int]]:
        # Only a streamed chat returns before it is answered, so nothing else can be batched.
        streams = [
            runner.send_chat_completion_request(
                package.ChatCompletionRequest(
                    model="default",
                    messages=[{"role": "user", "content": prompt}],
                    max_tokens=output_tokens,
                    temperature=0.0,
                    stream=True,
                    logit_bias=_END_TOKENS,
                )
            )
            for prompt in prompts
        ]
        with ThreadPoolExecutor(len(streams)) as readers:
            return list(readers.map(_counts, streams))

    return generate


def _counts(stream: Any) -> tuple[int, int]:
    usages = [chunk.usage for chunk in stream if chunk.usage is not None]
    if not usages:
        raise RuntimeError("a stream ended without an answer")
    return usages[-1].prompt_tokens, usages[-1].completion_tokens


if __name__ == "__main__":
    answer_job(load)
