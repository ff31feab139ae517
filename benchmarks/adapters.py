"""What it costs that requests ask for different LoRA adapters: throughput of mixed traffic over that of one adapter.

    python benchmarks/adapters.py smollm2

Writes random adapters of its own, answers the same prompts under one of them and under all in turn, and prints the
tokens per second of both and their ratio (the aim is 0.70 at least). Measurements alternate; the best of each counts.
Prompts differ in their first token, so nothing is cached. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

from stoker import LLM, SamplingParams
from stoker.models.gguf import read_gguf
from stoker.models.store import resolve

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def main() -> None:
    parser = argparse.ArgumentParser(description="What adapter-mixed traffic costs, see the head of this file")
    parser.add_argument("model")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--streams", type=int, default=16, help="requests at a time")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32, help="of one answer")
    parser.add_argument("--repetitions", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = resolve(asked.model)
        lora = {f"a{seed}": write_adapter(Path(folder), model, seed, asked.rank) for seed in range(asked.adapters)}
        compare(model, lora, asked)


def compare(model: Path, lora: dict[str, Path], asked: argparse.Namespace) -> None:
    kv_tokens = asked.streams * (asked.prompt_tokens + asked.tokens + 32)
    single: list[float] = []
    mixed: list[float] = []
    sizes: dict[str, Any] = {"ctx_size": 1024, "kv_tokens": max(1024, kv_tokens), "parallel": asked.streams}
    with LLM(model, lora=lora, backend=asked.backend, **sizes) as llm:
        print(f"computed by the backend {llm.card.backend}")
        names = [f"a{index % asked.adapters}" for index in range(asked.streams)]
        answer(llm, asked, names, 0)  # warm
        for repetition in range(asked.repetitions):
            single.append(answer(llm, asked, ["a0"] * asked.streams, 2 * repetition + 1))
            mixed.append(answer(llm, asked, names, 2 * repetition + 2))
    print(f"one adapter:  {max(single):8.1f} tokens/s   (least {min(single):.1f})")
    print(f"{asked.adapters} adapters:   {max(mixed):8.1f} tokens/s   (least {min(mixed):.1f})")
    print(f"ratio: {max(mixed) / max(single):.3f}")


def answer(llm: LLM, asked: argparse.Namespace, names: list[str], number: int) -> float:
    """Written tokens per second."""
    rng = np.random.default_rng(number)
    length: int = asked.prompt_tokens
    prompts = [[1000 + index, *rng.integers(1000, 30000, length - 1).tolist()] for index in range(len(names))]
    sampling = SamplingParams(temperature=0, max_tokens=asked.tokens, ignore_eos=True)
    began = time.perf_counter()
    answers = llm.generate(prompts, sampling, lora=names)
    seconds = time.perf_counter() - began
    return sum(len(completion.token_ids) for completion in answers) / seconds


def write_adapter(folder: Path, model: Path, seed: int, rank: int) -> Path:
    """A random adapter of all matrices of the model's layers, small enough to leave it its wits."""
    rng = np.random.default_rng(seed)
    path = folder / f"a{seed}.gguf"
    with read_gguf(model) as source:
        writer = GGUFWriter(path, source.architecture)
        writer.add_string("general.type", "adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", float(rank))
        for name, tensor in source.tensors.items():
            if any(name.endswith(f".{matrix}.weight") for matrix in MATRICES):
                inputs, outputs = tensor.shape
                writer.add_tensor(f"{name}.lora_a", rng.normal(0, inputs**-0.5, (rank, inputs)).astype(np.float32))
                writer.add_tensor(f"{name}.lora_b", rng.normal(0, 0.02, (outputs, rank)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


if __name__ == "__main__":
    main()
