"""The real `openai` client against a real server with a real model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import openai
import pydantic
import pytest
from openai import AsyncOpenAI, AzureOpenAI, OpenAI

from tests.waiting import BOUND_S

MODEL = "smollm2"
QUESTION: list[Any] = [{"role": "user", "content": "What is gravity?"}]


@pytest.fixture
def client(served_smollm2: str) -> Iterator[Any]:
    with OpenAI(base_url=f"{served_smollm2}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_chat(client: Any):
    reply = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=32)
    (choice,) = reply.choices
    assert "physics" in choice.message.content
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.model == MODEL


@pytest.mark.parametrize("deployment", [None, MODEL])
def test_client_of_azure_is_answered_the_same(client: Any, served_smollm2: str, deployment: str | None):
    request: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 8}
    whole = client.chat.completions.create(**request)
    with AzureOpenAI(
        azure_endpoint=served_smollm2,
        azure_deployment=deployment,
        api_version="2024-10-21",
        api_key="none",
        max_retries=0,
    ) as azure:
        assert azure.chat.completions.create(**request).choices == whole.choices
        chunks = list(azure.chat.completions.create(**request, stream=True))
        response = azure.responses.create(model=MODEL, input="What is gravity?", max_output_tokens=16)
        assert azure.responses.retrieve(response.id).output_text == response.output_text
        assert MODEL in [model.id for model in azure.models.list()]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content


def test_streamed_chat_equals_the_whole_reply(client: Any):
    request: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 24}
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks[:-2]] == [None] * (len(chunks) - 2)
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    text = "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert len({c.id for c in chunks}) == 1


def test_chat_through_the_stream_context(client: Any):
    request: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 64, "stop": "."}
    with client.chat.completions.stream(**request) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert final.choices[0].message.content


def test_second_turn_reuses_the_first(client: Any):
    first = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, max_tokens=16)
    turns = [*QUESTION, {"role": "assistant", "content": first.choices[0].message.content}]
    turns.append({"role": "user", "content": "And what is light?"})
    second = client.chat.completions.create(model=MODEL, messages=turns, temperature=0, max_tokens=4)
    assert second.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens // 2


def test_completion(client: Any):
    reply = client.completions.create(model=MODEL, prompt="1, 2, 3, 4,", temperature=0, max_tokens=8)
    assert "5" in reply.choices[0].text
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 8
    stream = client.completions.create(model=MODEL, prompt="1, 2, 3, 4,", temperature=0, max_tokens=8, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == reply.choices[0].text


def test_several_prompts_and_choices(client: Any):
    prompts = ["The sky is", "Snow is"]
    reply = client.completions.create(model=MODEL, prompt=prompts, n=2, max_tokens=4, seed=1, echo=True)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert [choice.text.startswith(prompts[choice.index // 2]) for choice in reply.choices] == [True] * 4


def test_seed_makes_answers_repeatable(client: Any):
    request: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 1.0}
    texts = [client.completions.create(**request, seed=seed).choices[0].text for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


def test_logprobs(client: Any):
    request: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 6}
    whole = client.chat.completions.create(**request, logprobs=True, top_logprobs=3)
    positions = whole.choices[0].logprobs.content
    assert "".join(p.token for p in positions) == whole.choices[0].message.content
    for position in positions:
        assert len(position.top_logprobs) == 3
        assert position.top_logprobs[0].token == position.token, "greedy takes the likeliest"
        assert position.logprob <= 0
    legacy = client.completions.create(model=MODEL, prompt="A B C", temperature=0, max_tokens=4, logprobs=2)
    logprobs = legacy.choices[0].logprobs
    assert "".join(logprobs.tokens) == legacy.choices[0].text
    for offset, token in zip(logprobs.text_offset, logprobs.tokens, strict=True):
        assert legacy.choices[0].text[offset:].startswith(token)
    assert [len(top) for top in logprobs.top_logprobs] == [2] * 4


def test_stop_string_is_never_emitted(client: Any):
    request: dict[str, Any] = {"model": MODEL, "prompt": "1, 2, 3, 4,", "temperature": 0, "max_tokens": 32}
    request["stop"] = [" 7"]
    whole = client.completions.create(**request).choices[0]
    assert whole.finish_reason == "stop"
    assert "7" not in whole.text
    assert "".join(c.choices[0].text for c in client.completions.create(**request, stream=True)) == whole.text


def test_models(client: Any):
    listed = [model.id for model in client.models.list()]
    assert listed == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_errors_arrive_as_the_clients_own(client: Any):
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model=MODEL, prompt="word " * 20_000, stream=True)
    assert too_long.value.code == "context_length_exceeded"
    body: Any = too_long.value.body
    assert body["n_prompt_tokens"] > body["n_ctx"]
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.chat.completions.create(model=MODEL, messages=QUESTION, modalities=["audio"])
    assert (unsupported.value.code, unsupported.value.param) == ("unsupported_parameter", "modalities")
    with pytest.raises(openai.BadRequestError) as negative:
        client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=-2)
    assert negative.value.param == "max_tokens"


@pytest.mark.parametrize(
    "verb",
    [
        lambda client: client.moderations.create(input="x"),
        lambda client: client.images.generate(prompt="x"),
        lambda client: client.audio.speech.create(input="x", model=MODEL, voice="alloy"),
        lambda client: client.fine_tuning.jobs.list(),
        lambda client: client.vector_stores.list(),
        lambda client: client.chat.completions.retrieve("chatcmpl-x"),
    ],
)
def test_what_is_not_served_says_so(client: Any, verb: Callable[[Any], object]):
    with pytest.raises(openai.NotFoundError, match="unknown endpoint") as unknown:
        verb(client)
    assert unknown.value.code == "not_found"


@pytest.mark.parametrize(
    "verb",
    [
        lambda client: client.files.list(),
        lambda client: client.files.create(file=b"x", purpose="batch"),
        lambda client: client.batches.list(),
    ],
)
def test_a_server_without_a_folder_for_files_says_how_it_gets_one(client: Any, verb: Callable[[Any], object]):
    with pytest.raises(openai.BadRequestError, match="--files-dir"):
        verb(client)


class Person(pydantic.BaseModel):
    name: Annotated[str, pydantic.Field(max_length=20)]
    age: int


def test_the_parsing_verbs_give_objects(client: Any):
    limits: dict[str, Any] = {"model": MODEL, "temperature": 0}
    asked = [{"role": "user", "content": "Describe a person."}]
    reply = client.chat.completions.parse(**limits, messages=asked, max_tokens=80, response_format=Person)
    assert isinstance(reply.choices[0].message.parsed, Person)
    response = client.responses.parse(**limits, input="Describe a person.", max_output_tokens=80, text_format=Person)
    assert isinstance(response.output_parsed, Person)


def test_raw_and_streaming_responses(client: Any):
    request: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 4}
    raw = client.chat.completions.with_raw_response.create(**request)
    assert raw.headers["x-request-id"] == raw.parse()._request_id
    with client.chat.completions.with_streaming_response.create(**request) as streaming:
        assert streaming.parse().choices[0].message.content == raw.parse().choices[0].message.content


def test_leaving_a_stream_leaves_the_server_usable(client: Any):
    for _ in range(12):  # more than run at the same time
        stream = client.completions.create(model=MODEL, prompt="Tell me a long story.", max_tokens=400, stream=True)
        next(iter(stream))
        stream.close()
    reply = client.completions.create(
        model=MODEL, prompt="1, 2,", max_tokens=2, timeout=BOUND_S, extra_body={"ignore_eos": True}
    )
    assert reply.usage.completion_tokens == 2


def test_async_clients_side_by_side(served_smollm2: str):
    async def ask(client: Any, number: int) -> str:
        prompt = f"{number}, {number + 1}, {number + 2},"
        whole = await client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=8)
        stream = await client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=8, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == whole.choices[0].text
        return whole.choices[0].text

    async def all_of_them() -> list[str]:
        client: Any
        async with AsyncOpenAI(base_url=f"{served_smollm2}/v1", api_key="none", max_retries=0) as client:
            chat = await client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=4)
            assert chat.usage.completion_tokens <= 4
            return await asyncio.gather(*(ask(client, number) for number in range(8)))

    assert all(asyncio.run(all_of_them()))
