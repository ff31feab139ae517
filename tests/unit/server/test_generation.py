"""Several answers of one request: who brings the echo, who is chosen, what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from stoker.core.params import SamplingParams
from stoker.engine.protocol import Accepted, Output, Submit
from stoker.errors import InvalidInput
from stoker.server.generation import Generation, GenerationRequest
from tests.unit.server.fake_runtime import FakeRuntime, Step, logprob, position, served
from tests.waiting import BOUND_S


class OnePlace(FakeRuntime):
    """Accepts everything, and answers one request after the other; each has the place until its stream is closed."""

    def __init__(self) -> None:
        super().__init__()
        self._place = asyncio.Lock()

    async def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        async with aclosing(super().generate(submit)) as events:
            yield await anext(events)
            async with self._place:
                async for event in events:
                    yield event


def request(**fields: Any) -> GenerationRequest:
    fields = {"reply_id": "r", "prompts": ["abc"], "sampling": SamplingParams(), **fields}
    return GenerationRequest(**fields)


def collect(runtime: FakeRuntime, asked: GenerationRequest) -> list[Output]:
    async def go() -> list[Output]:
        async with await Generation.open(served(runtime), asked) as generation:
            return await generation.collect()

    return asyncio.run(go())


def iterate(runtime: FakeRuntime, asked: GenerationRequest) -> list[tuple[int, Output]]:
    async def go() -> list[tuple[int, Output]]:
        async with await Generation.open(served(runtime), asked) as generation:
            return [item async for item in generation]

    return asyncio.run(go())


def likelihood(submit: Submit) -> list[Step]:
    """Choice k of the first prompt has a mean log-probability of (-3, -1, -2)[k]; the second prompt the other way."""
    index = int(submit.request_id.rpartition("-")[2])
    values = [-3.0, -1.0, -2.0, -1.0, -3.0, -2.0]
    steps: list[Step] = [{"text": f"{index}", "logprobs": [position("x", values[index])]}]
    return steps * (1 + index % 3)  # longer answers are not less likely per token


def test_the_likeliest_per_token_are_chosen_of_each_prompt():
    outputs = collect(FakeRuntime(likelihood), request(prompts=["a", "b"], n=2, best_of=3))
    assert [output.text[0] for output in outputs] == ["1", "2", "3", "5"]
    assert all(output.logprobs is None for output in outputs), "they were not asked for"


def test_choosing_asks_for_logprobs_and_leaves_what_was_asked_for():
    runtime = FakeRuntime(likelihood)
    (best,) = collect(runtime, request(best_of=3, sampling=SamplingParams(logprobs=2)))
    assert best.logprobs is not None
    assert [submit.sampling.logprobs for submit in runtime.submits] == [2] * 3
    runtime = FakeRuntime(likelihood)
    collect(runtime, request(best_of=3))
    assert [submit.sampling.logprobs for submit in runtime.submits] == [0] * 3
    runtime = FakeRuntime()
    collect(runtime, request(n=3))
    assert [submit.sampling.logprobs for submit in runtime.submits] == [None] * 3


def test_an_answer_without_tokens_is_the_least_likely():
    def script(submit: Submit) -> list[Step]:
        return [""] if submit.request_id.endswith("-0") else [{"text": "x", "logprobs": [position("x", -9.0)]}]

    assert [output.text for output in collect(FakeRuntime(script), request(best_of=2))] == ["x"]


def test_all_answers_that_were_computed_are_counted_but_a_prompt_once():
    async def go() -> tuple[int, int]:
        async with await Generation.open(served(FakeRuntime(likelihood)), request(best_of=3)) as generation:
            await generation.collect()
            return generation.usage.prompt_tokens, generation.usage.completion_tokens

    assert asyncio.run(go()) == (3, 1 + 2 + 3)


def test_answers_to_one_prompt_are_one_group_with_their_own_seeds():
    runtime = FakeRuntime()
    collect(runtime, request(prompts=["a", "b"], n=2, sampling=SamplingParams(seed=2**64 - 1)))
    groups = [submit.group for submit in runtime.submits]
    assert groups[0] == groups[1] != groups[2] == groups[3]
    assert [submit.sampling.seed for submit in runtime.submits] == [2**64 - 1, 0] * 2
    collect(runtime, request())
    assert runtime.submits[-1].group == "", "one alone has nobody to share with"


def test_only_the_first_answer_scores_the_prompt_and_the_others_wait_for_it():
    gate = asyncio.Event()

    def script(submit: Submit) -> list[Step]:
        if submit.request_id.endswith("-0"):
            return [gate, "late"]
        return ["a", "b", "c"]

    async def go() -> list[tuple[int, Output]]:
        async with await Generation.open(served(runtime), request(prompts=["abc", "de"], n=2, echo=True)) as generation:
            items: list[tuple[int, Output]] = []
            async for item in generation:
                items.append(item)
                if len(items) == 6:  # all of the second prompt
                    gate.set()
            return items

    runtime = FakeRuntime(script)
    items = asyncio.run(go())
    assert [submit.echo for submit in runtime.submits] == [True, False, True, False]
    assert {index for index, _ in items[:6]} == {2, 3}
    for index, prompt in enumerate([b"abc", b"abc", b"de", b"de"]):
        own = [output for at, output in items if at == index]
        assert b"".join(token.token for token in own[0].prompt or ()) == prompt
        assert all(output.prompt is None for output in own[1:])
        assert "".join(output.text for output in own) == ("late" if index == 0 else "abc")


def test_what_could_never_run_and_wait_is_refused():
    with pytest.raises(InvalidInput) as refused:
        collect(FakeRuntime(), request(n=2, best_of=13))
    assert refused.value.fields["parameter"] == "n"


def test_items_come_as_the_engine_gives_them():
    steps: list[Step] = [{"text": "a", "logprobs": [position("a", -1.0, logprob("b", -2.0))]}, "b"]
    items = iterate(FakeRuntime(lambda submit: steps), request())
    assert [(index, output.text) for index, output in items] == [(0, "a"), (0, "b")]


def test_a_choice_that_has_ended_leaves_its_place_to_the_next_one():
    async def go() -> list[Output]:
        async with asyncio.timeout(BOUND_S):
            async with await Generation.open(served(OnePlace()), request(prompts=["a", "b"], n=2)) as generation:
                return await generation.collect()

    assert [output.text for output in asyncio.run(go())] == ["Hello!"] * 4
