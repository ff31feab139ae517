"""OpenVINO GenAI's continuous batching as a program, see `job.py`."""

from __future__ import annotations

from typing import Any

from job import Generate, answer_job

_CACHE_GB = 2
_MAX_SEQUENCES = 64


def load(model: str, threads: int) -> Generate:
    import openvino_genai  # pyright: ignore[reportMissingImports]

    package: Any = openvino_genai
    scheduler = package.SchedulerConfig()
    scheduler.cache_size = _CACHE_GB
    scheduler.max_num_seqs = _MAX_SEQUENCES
    scheduler.enable_prefix_caching = False  # prompts are distinct anyway
    pipeline = package.LLMPipeline(model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads)
    tokenizer = pipeline.get_tokenizer()

    def generate(prompts: list[str], output_tokens: int) -> list[tuple[int, int]]:
        config = package.GenerationConfig()
        config.max_new_tokens = output_tokens
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        num_output = pipeline.generate(prompts, config).perf_metrics.get_num_generated_tokens()
        lengths = [tokenizer.encode(prompt).input_ids.shape[1] for prompt in prompts]
        return [(length, num_output // len(prompts)) for length in lengths]

    return generate


if __name__ == "__main__":
    answer_job(load)
