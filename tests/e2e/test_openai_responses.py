"""The real `openai` client's responses and counts, against a real server with a real model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

MODEL = "smollm2"


@pytest.fixture
def client(served_smollm2: str) -> Iterator[Any]:
    with OpenAI(base_url=f"{served_smollm2}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_response_is_kept_and_gone_on_from(client: Any):
    first = client.responses.create(model=MODEL, input="What is gravity?", temperature=0, max_output_tokens=24)
    assert first.status == "incomplete"
    assert first.incomplete_details.reason == "max_output_tokens"
    assert first.output_text
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(
        model=MODEL, input="And light?", previous_response_id=first.id, temperature=0, max_output_tokens=4
    )
    assert second.usage.input_tokens > first.usage.input_tokens + 24
    assert second.usage.input_tokens_details.cached_tokens > first.usage.input_tokens // 2
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_streamed_response_equals_the_whole_one(client: Any):
    request: dict[str, Any] = {"model": MODEL, "input": "Say hello.", "instructions": "Be brief.", "temperature": 0}
    request |= {
        "max_output_tokens": 64,
        "extra_body": {"stop": ["e"]},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 1,
    }
    whole = client.responses.create(**request)
    with client.responses.stream(**request) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    assert final.status == whole.status == events[-1].type.removeprefix("response.") == "completed"
    logprobs = final.output[0].content[0].logprobs
    assert "".join(p.token for p in logprobs).startswith(whole.output_text)


def test_what_a_response_answers_is_listed(client: Any):
    first = client.responses.create(model=MODEL, input="What is gravity?", max_output_tokens=2)
    second = client.responses.create(
        model=MODEL, input="And light?", previous_response_id=first.id, max_output_tokens=2
    )
    items = list(client.responses.input_items.list(second.id, limit=2))  # in two pages
    assert [item.content[0].text for item in items] == ["And light?", first.output_text, "What is gravity?"]
    assert [item.role for item in items] == ["user", "assistant", "user"]
    with pytest.raises(openai.BadRequestError, match="stream"):
        client.responses.retrieve(first.id, stream=True)


def test_a_conversation_is_kept_continued_and_deleted(client: Any):
    about: dict[str, Any] = {"items": [{"role": "user", "content": "My name is Ada."}], "metadata": {"topic": "names"}}
    conversation = client.conversations.create(**about)
    assert client.conversations.retrieve(conversation.id).metadata == {"topic": "names"}
    request: dict[str, Any] = {
        "model": MODEL,
        "conversation": conversation.id,
        "temperature": 0,
        "max_output_tokens": 8,
    }
    first = client.responses.create(**request, input="What is my name?")
    assert first.conversation.id == conversation.id
    *_, last = client.responses.create(**request, input="And yours?", stream=True)
    second = last.response
    assert second.usage.input_tokens > first.usage.input_tokens + 8
    client.conversations.items.create(conversation.id, items=[{"role": "user", "content": "Bye."}])
    items = list(client.conversations.items.list(conversation.id, order="asc", limit=2))  # in several pages
    said = ["My name is Ada.", "What is my name?", first.output_text, "And yours?", second.output_text, "Bye."]
    assert [item.content[0].text for item in items] == said
    assert client.conversations.items.retrieve(items[2].id, conversation_id=conversation.id).role == "assistant"
    client.conversations.items.delete(items[-1].id, conversation_id=conversation.id)
    assert len(client.conversations.items.list(conversation.id).data) == 5
    assert client.conversations.update(conversation.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.responses.create(**request, input="Are you there?")


def test_background_response_is_cancelled(client: Any):
    started = client.responses.create(
        model=MODEL, input="Tell me a very long story.", background=True, extra_body={"ignore_eos": True}
    )
    assert started.status in ("queued", "in_progress")
    assert client.responses.cancel(started.id).status == "cancelled"


def test_a_stream_in_the_background_is_left_read_again_and_cancelled(client: Any):
    request: dict[str, Any] = {"model": MODEL, "background": True, "stream": True, "temperature": 0}
    with client.responses.create(**request, input="Say hello.", max_output_tokens=12) as stream:
        response_id, number = next((event.response.id, event.sequence_number) for event in stream)
    with client.responses.retrieve(response_id, stream=True, starting_after=number) as rest:
        events = list(rest)
    assert [event.sequence_number for event in events] == list(range(number + 1, number + 1 + len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    final = client.responses.retrieve(response_id)
    assert (final.output_text, final.usage) == (text, events[-1].response.usage)
    with client.responses.create(**request, input="Tell.", extra_body={"ignore_eos": True}) as stream:
        begun = next(event.response.id for event in stream)
        assert client.responses.cancel(begun).status == "cancelled"
        assert not any(event.type == "response.completed" for event in stream)


def test_tokens_are_counted_as_they_are_used(client: Any):
    conversation: dict[str, Any] = {"input": "What is gravity?", "instructions": "Be brief."}
    counted = client.responses.input_tokens.count(model=MODEL, **conversation)
    used = client.responses.create(model=MODEL, max_output_tokens=1, **conversation)
    assert counted.input_tokens == used.usage.input_tokens
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is gravity?"}]
    reply = client.post("/chat/completions/input_tokens", body={"messages": messages}, cast_to=object)
    assert reply["input_tokens"] == counted.input_tokens


def test_async_client_streams_a_response(served_smollm2: str):
    async def go() -> str:
        client: Any
        async with AsyncOpenAI(base_url=f"{served_smollm2}/v1", api_key="none", max_retries=0) as client:
            stream = await client.responses.create(model=MODEL, input="Say hello.", max_output_tokens=8, stream=True)
            return "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])

    assert asyncio.run(go())


def test_echo_best_of_and_scoring(client: Any):
    prompt = "The capital of France is"
    request: dict[str, Any] = {"model": MODEL, "prompt": prompt, "temperature": 0, "logprobs": 1}
    scored = client.completions.create(**request, max_tokens=0, echo=True).choices[0]
    assert (scored.text, scored.finish_reason) == (prompt, "length")
    assert scored.logprobs.token_logprobs[0] is None
    assert "".join(scored.logprobs.tokens) == prompt
    answer = client.completions.create(**request, max_tokens=1).choices[0]
    assert answer.text == " Paris"
    # The same token as part of a prompt has the log-probability that it had as an answer.
    whole = client.completions.create(**{**request, "prompt": prompt + " Paris"}, max_tokens=0, echo=True).choices[0]
    assert whole.logprobs.tokens[-1] == " Paris"
    assert whole.logprobs.token_logprobs[-1] == pytest.approx(answer.logprobs.token_logprobs[0], abs=1e-5)
    best = client.completions.create(model=MODEL, prompt=prompt, max_tokens=3, best_of=3, seed=0, temperature=1.0)
    assert len(best.choices) == 1
    assert best.usage.completion_tokens == 9


def test_suffix_is_refused_by_a_model_that_cannot_fill_in(client: Any):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="def f():", suffix="return x")
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "suffix")


def test_several_answers_compute_their_prompt_once(client: Any):
    prompt = "Once there was a king who counted every token: " * 3
    reply = client.completions.create(model=MODEL, prompt=prompt, n=4, seed=3, temperature=1.0, max_tokens=4)
    assert len({choice.text for choice in reply.choices}) > 1
    assert reply.usage.prompt_tokens < 60, "it counts once"


def test_bias_of_a_text(client: Any):
    request: dict[str, Any] = {"model": MODEL, "prompt": "The capital of France is", "temperature": 0, "max_tokens": 1}
    assert client.completions.create(**request, logit_bias={" Paris": -100}).choices[0].text != " Paris"
