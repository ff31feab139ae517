"""OpenVINO GenAI's continuous batching behind the loop of `loop.py`. Runs with the peers' Python, not with Stoker's."""

from __future__ import annotations

from typing import Any

from loop import Answer, serve_loop

_CACHE_GB = 2
_MAX_SEQUENCES = 64


def load(model: str, threads: int) -> Answer:
    import openvino_genai  # pyright: ignore[reportMissingImports]

    package: Any = openvino_genai
    scheduler = package.SchedulerConfig()
    scheduler.cache_size = _CACHE_GB
    scheduler.max_num_seqs = _MAX_SEQUENCES
    scheduler.enable_prefix_caching = False  # prompts are distinct anyway
    pipeline = package.LLMPipeline(model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads)

    def answer(prompts: list[str], max_tokens: int) -> int:
        config = package.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        return pipeline.generate(prompts, config).perf_metrics.get_num_generated_tokens()

    return answer


if __name__ == "__main__":
    serve_loop(load)
