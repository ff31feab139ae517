"""The real `anthropic` client against a real server with a real model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

MODEL = "smollm2"
RED_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
QUESTION: list[Any] = [{"role": "user", "content": "What is gravity?"}]
GREEDY: dict[str, Any] = {"model": MODEL, "extra_body": {"temperature": 0}}


@pytest.fixture
def client(served_smollm2: str) -> Iterator[Any]:
    with Anthropic(base_url=served_smollm2, api_key="none", max_retries=0) as client:
        yield client


def test_message(client: Any):
    reply = client.messages.create(**GREEDY, messages=QUESTION, max_tokens=32)
    (block,) = reply.content
    assert (block.type, reply.role, reply.model) == ("text", "assistant", MODEL)
    assert "physics" in block.text
    assert reply.stop_reason == "max_tokens"
    assert reply.usage.output_tokens == 32
    assert reply._request_id


def test_stream_equals_the_whole_message(client: Any):
    request = {**GREEDY, "messages": QUESTION, "max_tokens": 12, "system": "Be brief."}
    whole = client.messages.create(**request)
    events = list(client.messages.create(**request, stream=True))
    assert [e.type for e in events][:2] == ["message_start", "content_block_start"]
    assert [e.type for e in events][-3:] == ["content_block_stop", "message_delta", "message_stop"]
    deltas = [e.delta.text for e in events if e.type == "content_block_delta"]
    assert len(deltas) > 5
    assert "".join(deltas) == whole.content[0].text
    assert events[-2].delta.stop_reason == whole.stop_reason
    assert events[-2].usage.output_tokens == whole.usage.output_tokens


def test_stream_helper(client: Any):
    with client.messages.stream(**GREEDY, messages=QUESTION, max_tokens=12) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text != ""
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 12


def test_stop_sequence(client: Any):
    reply = client.messages.create(**GREEDY, messages=QUESTION, max_tokens=64, stop_sequences=["physics"])
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", "physics")
    assert "physics" not in reply.content[0].text


def test_second_turn_reads_the_first_from_the_cache(client: Any):
    first = client.messages.create(**GREEDY, messages=QUESTION, max_tokens=8)
    turns = [
        *QUESTION,
        {"role": "assistant", "content": [{"type": "text", "text": first.content[0].text}]},
        {"role": "user", "content": [{"type": "text", "text": "Why?", "cache_control": {"type": "ephemeral"}}]},
    ]
    second = client.messages.create(**GREEDY, messages=turns, max_tokens=2)
    counted = client.messages.count_tokens(model=MODEL, messages=turns)
    assert second.usage.cache_read_input_tokens > 20
    assert second.usage.input_tokens + second.usage.cache_read_input_tokens == counted.input_tokens


def test_answer_goes_on_from_its_beginning(client: Any):
    begun = [*QUESTION, {"role": "assistant", "content": "Gravity is a fundamental"}]
    reply = client.messages.create(**GREEDY, messages=begun, max_tokens=2)
    assert reply.content[0].text.startswith(" "), "in the middle of a sentence"


def test_errors_arrive_as_the_clients_own(client: Any):
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(
            model=MODEL, messages=[{"role": "user", "content": "word " * 20_000}], max_tokens=1, stream=True
        )
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": RED_PIXEL}}
    with pytest.raises(anthropic.BadRequestError, match="takes no images"):
        client.messages.create(model=MODEL, messages=[{"role": "user", "content": [image]}], max_tokens=1)
    tool = {"type": "web_search_20250305", "name": "web_search"}
    with pytest.raises(anthropic.BadRequestError, match="tools"):
        client.messages.create(model=MODEL, messages=QUESTION, max_tokens=1, tools=[tool])
    own = {"name": "clock", "input_schema": {"type": "object"}}
    reply = client.messages.create(model=MODEL, messages=QUESTION, max_tokens=1, tools=[tool, own])
    assert reply.usage.output_tokens == 1, "the client's own tools are enough"


def test_a_model_without_reasoning_answers_a_request_that_allows_reasoning(client: Any):
    thinking = {"type": "enabled", "budget_tokens": 1024}
    reply = client.messages.create(**GREEDY, messages=QUESTION, max_tokens=2048, thinking=thinking)
    assert [block.type for block in reply.content] == ["text"]
    plain = client.messages.create(**GREEDY, messages=QUESTION, max_tokens=2048)
    assert reply.content[0].text == plain.content[0].text


@pytest.mark.parametrize(
    "verb",
    [
        lambda client: client.messages.batches.list(),
        lambda client: client.messages.batches.create(requests=[]),
    ],
)
def test_a_server_without_a_folder_for_files_says_how_it_gets_one(client: Any, verb: Callable[[Any], object]):
    with pytest.raises(anthropic.BadRequestError, match="--files-dir"):
        verb(client)


def test_models(client: Any):
    assert [model.id for model in client.models.list()] == [MODEL]
    model = client.models.retrieve(MODEL)
    assert (model.id, model.type, model.lifecycle) == (MODEL, "model", "active")
    assert model.created_at.year > 2020
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("other")


def test_beta_messages(client: Any):
    reply = client.beta.messages.create(**GREEDY, messages=QUESTION, max_tokens=2, betas=["some-beta"])
    assert reply.usage.output_tokens == 2


def test_async_client(served_smollm2: str):
    async def ask() -> None:
        client: Any
        async with AsyncAnthropic(base_url=served_smollm2, api_key="none", max_retries=0) as client:
            request = {**GREEDY, "messages": QUESTION, "max_tokens": 8}
            whole = await client.messages.create(**request)
            async with client.messages.stream(**request) as stream:
                text = "".join([part async for part in stream.text_stream])
            assert text == whole.content[0].text
            counted = await client.messages.count_tokens(model=MODEL, messages=QUESTION)
            assert counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens

    asyncio.run(ask())
