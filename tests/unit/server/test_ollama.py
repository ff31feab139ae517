"""Ollama's endpoints that write text: what its clients send, and to the letter what they get."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from stoker.core.params import SamplingParams
from stoker.engine.cards import FillTokens, ModelCard
from stoker.errors import BackendError, ContextLengthExceeded, ModelNotLoaded, Overloaded, StokerError
from stoker.server.answer import whole
from stoker.server.dialects.ollama.types import OPTION_FIELDS, GenerateReply
from stoker.server.dialects.ollama.writer import OllamaWriter, generate_reply
from stoker.server.fields import Honoured, Ignored, Refused
from stoker.server.generation import Generation, GenerationRequest
from tests.unit.server.fake_runtime import (
    CARD,
    LOADING,
    FakeRuntime,
    RawClient,
    ask,
    logprob,
    make_app,
    position,
    served,
)
from tests.unit.server.field_probes import SAMPLING_PROBES, Exchange
from tests.unit.server.test_connection import held_open, run

HI = [{"role": "user", "content": "hi"}]
DURATIONS = ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration"]


def generate(runtime: FakeRuntime, **body: Any) -> httpx.Response:
    body = {"model": "tiny:latest", "prompt": "hi", **body}
    return ask(make_app(runtime), "POST", "/api/generate", json=body)


def chat(runtime: FakeRuntime, **body: Any) -> httpx.Response:
    return ask(make_app(runtime), "POST", "/api/chat", json={"model": "tiny", "messages": HI, **body})


def lines(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    return [msgspec.json.decode(line) for line in response.text.splitlines()]


def check_numbers(reply: dict[str, Any]) -> None:
    parts = [reply.pop(name) for name in DURATIONS]
    assert all(isinstance(part, int) and part >= 0 for part in parts)
    assert sum(parts[1:]) <= parts[0] + 3, "nanoseconds of which none counts twice"


def test_whole_generation():
    reply = generate(FakeRuntime(), stream=False).json()
    check_numbers(reply)
    assert reply.pop("created_at").endswith("Z")
    prompt = [256, *b"<user>hi"]
    assert reply == {
        "model": "tiny:latest",
        "response": "Hello!",
        "done": True,
        "done_reason": "stop",
        "context": [*prompt, 1, 2, 3],
        "prompt_eval_count": len(prompt),
        "eval_count": 3,
    }


def test_generation_streams_unless_told_otherwise():
    *parts, last = lines(generate(FakeRuntime()))
    assert [part["response"] for part in parts] == ["Hel", "lo", "!"]
    assert all(part.keys() == {"model", "created_at", "response", "done"} for part in parts)
    assert not any(part["done"] for part in parts)
    check_numbers(last)
    assert (last["done"], last["response"], last["done_reason"]) == (True, "", "stop")
    assert (last["prompt_eval_count"], last["eval_count"]) == (9, 3)


def test_whole_chat_and_its_stream():
    whole = chat(FakeRuntime(), stream=False).json()
    check_numbers(whole)
    assert whole["message"] == {"role": "assistant", "content": "Hello!"}
    assert "context" not in whole
    *parts, last = lines(chat(FakeRuntime()))
    assert [part["message"] for part in parts] == [{"role": "assistant", "content": t} for t in ("Hel", "lo", "!")]
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done"], last["done_reason"]) == (True, "stop")


def test_roles_in_capitals_and_messages_without_content():
    runtime = FakeRuntime()
    messages: list[dict[str, Any]] = [{"role": "System"}, {"role": "USER", "content": None}, {"role": "Assistant"}]
    assert chat(runtime, messages=[*messages, *HI]).status_code == 200
    assert [(m.role, m.content) for m in runtime.rendered[-1][0]] == [
        ("system", ""),
        ("user", ""),
        ("assistant", ""),
        ("user", "hi"),
    ]


@pytest.mark.parametrize("kind", [{"type": ""}, {"type": None}, {}, {"type": "function"}])
def test_type_of_a_tool_may_be_empty(kind: dict[str, Any]):
    runtime = FakeRuntime()
    tools = [kind | {"function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
    assert chat(runtime, tools=tools).status_code == 200
    (offered,) = runtime.rendered[-1][1]["tools"]
    assert (offered["type"], offered["function"]["name"]) == ("function", "now")


@pytest.mark.parametrize(("stop", "strings"), [("", ()), ([""], ()), (["", "END"], ("END",))])
def test_empty_stop_strings_stop_nothing(stop: str | list[str], strings: tuple[str, ...]):
    runtime = FakeRuntime()
    assert chat(runtime, options={"stop": stop}).status_code == 200
    assert runtime.submits[-1].sampling.stop_strings == strings


def test_end_at_the_limit():
    runtime = FakeRuntime(lambda submit: ["a", {"text": "b", "finish_reason": "length"}])
    assert chat(runtime, stream=False).json()["done_reason"] == "length"
    assert [line["message"]["content"] for line in lines(chat(runtime))] == ["a", "b", ""]


def test_prompt_goes_through_the_template_with_its_system():
    runtime = FakeRuntime()
    generate(runtime, system="be brief")
    assert [(m.role, m.text) for m in runtime.rendered[-1][0]] == [("system", "be brief"), ("user", "hi")]
    assert runtime.submits[-1].prompt == [256, *b"<system>be brief<user>hi"]


def test_raw_prompt_is_taken_as_it_is():
    runtime = FakeRuntime()
    reply = generate(runtime, raw=True, stream=False).json()
    assert runtime.submits[-1].prompt == "hi"
    assert runtime.rendered == []
    assert "context" not in reply
    for name, value in (("system", "x"), ("context", [1])):
        refusal = generate(runtime, raw=True, **{name: value})
        assert refusal.status_code == 400
        assert name in refusal.json()["error"]


def test_context_is_continued():
    runtime = FakeRuntime()
    first = generate(runtime, stream=False).json()["context"]
    second = generate(runtime, stream=False, context=first, prompt="more").json()
    assert runtime.submits[-1].prompt == [*first, *b"<user>more"], "BOS stands only at the very beginning"
    assert second["context"] == [*first, *b"<user>more", 1, 2, 3]


@pytest.mark.parametrize("token_id", [-1, CARD.vocab_size])
def test_context_that_no_reply_can_have_had_is_refused_by_name(token_id: int):
    runtime = FakeRuntime()
    response = generate(runtime, context=[5, token_id])
    assert response.status_code == 400
    assert response.json()["error"].startswith(f"`context`: token id {token_id} ")
    assert runtime.submits == []


class FixedCard(FakeRuntime):
    def __init__(self, fill_tokens: FillTokens | None) -> None:
        super().__init__()
        self._fill_tokens = fill_tokens

    @property
    def card(self) -> ModelCard:
        return msgspec.structs.replace(CARD, fill_tokens=self._fill_tokens)


def test_suffix_fills_in_the_middle_if_the_model_can():
    runtime = FixedCard(FillTokens(prefix=270, suffix=271, middle=272))
    assert generate(runtime, suffix="end").status_code == 200
    submit = runtime.submits[-1]
    assert submit.prompt == [270, "hi", 271, "end", 272]
    assert submit.parse_special is False
    refusal = generate(FixedCard(None), suffix="end")
    assert refusal.status_code == 400
    assert "suffix" in refusal.json()["error"]


def test_last_message_of_the_assistant_is_continued():
    runtime = FakeRuntime()
    chat(runtime, messages=[*HI, {"role": "assistant", "content": "Once"}])
    assert runtime.rendered[-1][1] == {"add_generation_prompt": False, "continue_final_message": True}


def test_history_of_tools_reaches_the_template():
    runtime = FakeRuntime()
    call = {"function": {"name": "clock", "arguments": {"zone": "UTC"}}}
    history = [
        *HI,
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "noon", "tool_name": "clock"},
    ]
    assert chat(runtime, messages=history).status_code == 200
    sent = runtime.rendered[-1][0]
    assert (sent[1].reasoning, sent[1].tool_calls) == ("hm", (call,))
    assert (sent[2].role, sent[2].name, sent[2].text) == ("tool", "clock", "noon")


@pytest.mark.parametrize("body", [{"prompt": ""}, {"prompt": None}, {}])
def test_empty_prompt_only_loads(body: dict[str, Any]):
    runtime = FakeRuntime()
    reply = ask(make_app(runtime), "POST", "/api/generate", json={"model": "tiny", **body})
    assert reply.json().pop("done_reason") == "load"
    assert (reply.json()["done"], reply.json()["response"]) == (True, "")
    assert runtime.submits == []
    loaded = chat(runtime, messages=[]).json()
    assert (loaded["done_reason"], loaded["message"]["content"]) == ("load", "")


@pytest.mark.parametrize("value", ["5m", "1h30m", "-1", -1, 300, 0.5, "500ms", "", "-1m", "10"])
def test_durations_for_which_the_model_is_kept(value: Any):
    assert generate(FakeRuntime(), keep_alive=value).status_code == 200


@pytest.mark.parametrize("value", [0, 0.0, "0", "0s", "0m0s", "-0"])
def test_model_that_stays_is_not_unloaded_but_answers(value: Any):
    assert generate(FakeRuntime(), keep_alive=value).status_code == 200
    refused = generate(FakeRuntime(), keep_alive=value, prompt="")
    assert refused.status_code == 400
    assert "`keep_alive` of 0: the model 'tiny' is pinned" in refused.json()["error"]


@pytest.mark.parametrize("value", ["soon", "5 m", "m", "1e3s", "--1"])
def test_what_is_no_duration_is_refused(value: str):
    response = generate(FakeRuntime(), keep_alive=value)
    assert response.status_code == 400
    assert "keep_alive" in response.json()["error"]


def test_thinking_is_switched_or_has_a_level():
    runtime = FakeRuntime()
    for value in (False, True):
        assert chat(runtime, think=value).status_code == 200
        assert runtime.rendered[-1][1]["enable_thinking"] is value
    assert chat(runtime, think="high").status_code == 200
    assert runtime.rendered[-1][1]["reasoning_effort"] == "high"
    response = chat(runtime, think="hard")
    assert response.status_code == 400
    assert "think" in response.json()["error"]


def test_log_probabilities():
    at = {"text": "é", "logprobs": [position("é", -0.5, logprob("é", -0.5), logprob(b"\xc3", -1.5))]}
    runtime = FakeRuntime(lambda submit: [at, {"text": "", "finish_reason": "length"}])
    reply = chat(runtime, stream=False, logprobs=True, top_logprobs=2).json()
    assert runtime.submits[-1].sampling.logprobs == 2
    assert reply["logprobs"] == [
        {
            "token": "é",
            "logprob": -0.5,
            "bytes": [0xC3, 0xA9],
            "top_logprobs": [
                {"token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]},
                {"token": "\ufffd", "logprob": -1.5, "bytes": [0xC3]},
            ],
        }
    ]
    assert lines(chat(runtime, logprobs=True))[0]["logprobs"] == reply["logprobs"]
    assert chat(runtime, top_logprobs=21).status_code == 400


def test_images_are_refused_by_their_place():
    response = chat(FakeRuntime(), messages=[{"role": "user", "content": "x", "images": ["aGk="]}])
    assert response.status_code == 400
    assert "messages[0].images" in response.json()["error"]


@pytest.mark.parametrize("messages", [[{}], [{"role": "user", "content": 5}], ["hi"], "hi", [{"role": ""}]])
def test_malformed_messages_are_refused(messages: Any):
    response = chat(FakeRuntime(), messages=messages)
    assert response.status_code == 400
    assert "messages" in response.json()["error"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Overloaded("full"), 503),
        (ModelNotLoaded("loading"), 503),
        (BackendError("x"), 500),
        (ContextLengthExceeded("too long", num_prompt_tokens=9, context_size=8), 400),
    ],
)
def test_errors_are_one_text(error: StokerError, status: int):
    runtime = FakeRuntime()
    runtime.refuse = lambda submit: error
    for response in (generate(runtime), chat(runtime, stream=False)):
        assert response.status_code == status
        assert response.json() == {"error": error.message}
        assert ("retry-after" in response.headers) == (status == 503)


def test_error_in_the_middle_of_a_stream_is_its_last_line():
    assert lines(chat(FakeRuntime(lambda submit: ["a", BackendError("boom")])))[-1] == {"error": "boom"}


def test_bug_of_ours_says_nothing_of_itself():
    response = chat(FakeRuntime(lambda submit: ["a", ValueError("secret")]))
    assert "internal error" in lines(response)[-1]["error"]
    assert "secret" not in response.text


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/api/chat", 405), ("POST", "/api/none", 404)])
def test_wrong_paths_and_methods_have_the_clients_shape(method: str, path: str, status: int):
    response = ask(make_app(FakeRuntime()), method, path)
    assert response.status_code == status
    assert isinstance(response.json()["error"], str)


def test_model_that_is_not_served_is_not_found():
    app = make_app(FakeRuntime(), strict=True)
    assert ask(app, "POST", "/api/generate", json={"model": "x", "prompt": "hi"}).status_code == 404
    assert ask(app, "POST", "/api/generate", json={"model": "tiny:latest", "prompt": "hi"}).status_code == 200


def test_loading_model_answers_503():
    runtime = FakeRuntime()
    runtime.state = LOADING
    assert generate(runtime).status_code == 503
    assert generate(runtime, prompt="").status_code == 503


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_probe(method: str):
    response = ask(make_app(FakeRuntime()), method, "/")
    assert response.status_code == 200
    assert response.text == ("Ollama is running" if method == "GET" else "")


def test_quiet_stream_stays_quiet():
    async def test() -> None:
        gate = asyncio.Event()
        app = make_app(FakeRuntime(held_open(gate)), keep_alive_s=0.001)
        client = RawClient(app, "/api/chat", {"messages": HI})
        assert b'"a"' in await client.next_body()
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert client.received.empty(), "an empty line would be an error to clients"
        gate.set()
        assert b'"b"' in await client.next_body()
        await client.task

    run(test())


def option(name: str, value: Any) -> Exchange:
    runtime = FakeRuntime()
    return Exchange(chat(runtime, stream=False, options={name: value}), runtime)


def options(kind: type) -> list[str]:
    return [name for name, policy in OPTION_FIELDS.items() if isinstance(policy, kind)]


@pytest.mark.parametrize("name", options(Honoured))
def test_honoured_option_has_its_effect(name: str):
    probe = SAMPLING_PROBES[name]
    assert probe.effect(option(name, probe.value))
    assert not probe.effect(option(name, None))


@pytest.mark.parametrize("name", options(Refused))
def test_refused_option_is_named(name: str):
    exchange = option(name, "probe")
    assert exchange.response.status_code == 400
    assert f"`options.{name}`" in exchange.response.json()["error"]
    policy = OPTION_FIELDS[name]
    assert isinstance(policy, Refused)
    assert all(option(name, value).response.status_code == 200 for value in policy.neutral)


@pytest.mark.parametrize("name", options(Ignored))
def test_ignored_option_changes_nothing(name: str):
    exchange = option(name, ["probe"])
    assert exchange.response.status_code == 200
    assert exchange.submit.sampling == option("stop", None).submit.sampling


def test_option_of_the_wrong_type_is_named():
    response = option("top_k", "many").response
    assert response.status_code == 400
    assert "`options.top_k`" in response.json()["error"]


@pytest.mark.parametrize(("name", "value"), [("num_predict", 2**40), ("repeat_penalty", 0), ("stop", ["x"] * 257)])
def test_option_out_of_range_is_named_as_the_client_named_it(name: str, value: Any):
    response = option(name, value).response
    assert response.status_code == 400
    assert response.json()["error"].startswith(f"`options.{name}` ")


@pytest.mark.parametrize("value", [-1, -2, -3, 0])
def test_no_limit_of_tokens(value: int):
    assert option("num_predict", value).submit.sampling.max_tokens == -1


def test_durations_are_nanoseconds():
    async def test() -> None:
        request = GenerationRequest(reply_id="r", prompts=["hi"], sampling=SamplingParams())
        async with await Generation.open(served(FakeRuntime()), request) as generation:
            generation.opened_s -= 3
            writer = OllamaWriter(generate_reply, "m", generation, begun_s=generation.opened_s - 2)
            reply = await whole(generation, writer)
        assert isinstance(reply, GenerateReply)
        assert reply.load_duration == 2_000_000_000
        assert isinstance(reply.prompt_eval_duration, int)
        assert reply.prompt_eval_duration >= 3_000_000_000

    run(test())
