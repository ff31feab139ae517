"""onnxruntime-genai on an exported folder as a program, see `job.py`.

Its generator answers a batch of prompts in step; its engine, which takes requests one by one, is slower on CPUs.
"""

from __future__ import annotations

import json
from typing import Any

from job import Generate, answer_job

_MAX_SEQUENCES = 64


def load(model: str, threads: int) -> Generate:
    import onnxruntime_genai  # pyright: ignore[reportMissingImports]

    package: Any = onnxruntime_genai
    config = package.Config(model)
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
    loaded = package.Model(config)
    tokenizer = package.Tokenizer(loaded)
    tokenizer.update_options(add_special_tokens="true")

    def answer(prompts: list[str], output_tokens: int) -> list[tuple[int, int]]:
        token_ids = tokenizer.encode_batch(prompts).as_numpy()
        num_prompt = token_ids.shape[1]
        params = package.GeneratorParams(loaded)
        # With equal limits it goes on past end tokens.
        length = num_prompt + output_tokens
        params.set_search_options(batch_size=len(prompts), min_length=length, max_length=length, do_sample=False)
        generator = package.Generator(loaded, params)
        generator.append_tokens(token_ids)
        while not generator.is_done():
            generator.generate_next_token()
        num_output = generator.token_count() - num_prompt
        return [(len(tokenizer.encode(prompt)), num_output) for prompt in prompts]

    def generate(prompts: list[str], output_tokens: int) -> list[tuple[int, int]]:
        starts = range(0, len(prompts), _MAX_SEQUENCES)
        return [count for at in starts for count in answer(prompts[at : at + _MAX_SEQUENCES], output_tokens)]

    return generate


if __name__ == "__main__":
    answer_job(load)
