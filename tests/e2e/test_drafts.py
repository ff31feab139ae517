"""What is guessed ahead changes no answer of a real model, and a client can see that it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker import LLM, Completion, SamplingParams

CODE = """class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        return self.items.pop()
"""
PROMPTS = [
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over",
    f"{CODE}\n\n# The same with the class renamed to Pile:\nclass Pile:\n",
    "A list of animals: the cat, the dog, the cow, the",
    "Once upon a time there was",
]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=96, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=64, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.4, seed=11, max_tokens=96, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=96, ignore_eos=True, repetition_penalty=1.05, presence_penalty=0.2),
]


def ask(llm: LLM) -> list[Completion]:
    """One stream at a time, so that there are drafts, and then all at once."""
    alone = [llm.generate(prompt, params) for params in PARAMS for prompt in PROMPTS]
    together = llm.generate(PROMPTS * 2, PARAMS[0])
    return [*alone, *together]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2_path", "gemma3_path"])
def test_drafts_change_no_answer(name: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(name)
    with LLM(path, max_draft=0, ctx_size=512) as llm:
        expected = ask(llm)
    with LLM(path, ctx_size=512) as llm:
        found = ask(llm)
    for its, same in zip(found, expected, strict=True):
        assert (its.token_ids, its.text, its.logprobs) == (same.token_ids, same.text, same.logprobs)
        assert (its.finish_reason, its.usage) == (same.finish_reason, same.usage)
