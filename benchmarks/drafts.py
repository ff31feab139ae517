"""What guessing ahead brings for one stream: tokens a second with and without, prompt by prompt in turn.

    python benchmarks/drafts.py smollm2 gemma3 --temperature 0 0.7

Each kind of task is answered by both, one answer of the one after one of the other, so that both see the same minutes.
The answers are compared, too: they must be equal.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from stoker import LLM, SamplingParams
from stoker.bench.prompts import Prompts

_ROOT = Path(__file__).resolve().parent.parent
_CODE = (_ROOT / "src" / "stoker" / "core" / "decode_run.py").read_text(encoding="utf-8")
_TEXT = (_ROOT / "docs" / "cache.md").read_text(encoding="utf-8")
TASKS = {
    "words": [Prompts("drafts", number).text(32) for number in range(6)],
    "questions": [
        "Write a short story about a lighthouse keeper.",
        "Explain how TCP congestion control works.",
        "What are the main causes of the First World War?",
        "Give me a recipe for lentil soup.",
    ],
    "lists": ["List twenty animals with one fact each.", "Make a table of ten countries, their capitals and rivers."],
    "code": [
        f"Rename the class to Again and repeat all of this:\n{_CODE[:1500]}",
        "Write quicksort in Python, with tests.",
    ],
    "texts": [
        f"Summarise:\n{_TEXT[:2500]}",
        f"Repeat this, with every `folder` replaced by `directory`:\n{_TEXT[:1200]}",
    ],
}
"""By kind. The first is what `stoker bench` asks: words without sense, answered as a text that goes on."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0])
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--max-draft", type=int, default=15)
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    print("model, task, temperature: tok/s without, with, ratio")
    for model in args.models:
        with (
            LLM(model, threads=args.threads, max_draft=0) as plain,
            LLM(model, threads=args.threads, max_draft=args.max_draft) as drafting,
        ):
            for temperature in args.temperature:
                for task, prompts in TASKS.items():
                    sampling = SamplingParams(temperature=temperature, seed=1, max_tokens=args.max_tokens)
                    without, with_them = compare(plain, drafting, task, prompts, sampling)
                    figures = f"{without:.0f}, {with_them:.0f}, {with_them / without:.2f}"
                    print(f"{Path(model).stem}, {task}, {temperature:g}: {figures}", flush=True)


def compare(plain: LLM, drafting: LLM, task: str, prompts: list[str], sampling: SamplingParams) -> tuple[float, float]:
    """Tokens a second of both, behind the prompt."""
    seconds, num_tokens = [0.0, 0.0], 0
    for prompt in prompts:
        answers: list[list[int]] = []
        for index, llm in enumerate((plain, drafting)):
            given = prompt if task == "words" else [{"role": "user", "content": prompt}]
            first_s, token_ids, last_s = answer(llm, given, sampling)
            seconds[index] += last_s - first_s
            answers.append(token_ids)
        assert answers[0] == answers[1], f"drafts have changed the answer to {prompt!r}"
        num_tokens += len(answers[0]) - 1
    return num_tokens / seconds[0], num_tokens / seconds[1]


def answer(llm: LLM, given: str | list[dict[str, str]], sampling: SamplingParams) -> tuple[float, list[int], float]:
    """When the first piece came, all tokens, and when the last came."""
    stream = llm.stream(given, sampling) if isinstance(given, str) else llm.stream_chat(given, sampling)
    with stream:
        next(stream, None)
        first_s = time.perf_counter()
        for _ in stream:
            pass
        return first_s, stream.completion.token_ids, time.perf_counter()


if __name__ == "__main__":
    main()
