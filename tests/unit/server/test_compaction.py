"""`POST /v1/responses/compact`, and the items `compaction` in the input of responses and in conversations."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import msgspec
import pytest
from starlette.types import ASGIApp

from stoker.core.params import SamplingParams
from stoker.engine.protocol import Usage
from stoker.engine.question_messages import AdapterChoice
from stoker.errors import BackendError
from stoker.server.dialects.responses.sealing import sealed, sealed_summary
from tests.unit.server.fake_runtime import FakeRuntime, RawClient, ask, logprob, make_app, position
from tests.unit.server.test_connection import held_open, run

IMAGE = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
TALK: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "One."},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "T"}]},
    {"role": "assistant", "content": "Two."},
    {"role": "user", "content": [{"type": "input_text", "text": "Three."}, {"type": "input_text", "text": "Four."}]},
    CALL,
    {"type": "function_call_output", "call_id": "c1", "output": "R"},
]
SHOWN = "This is a summary of our conversation so far. It replaces what you wrote in it.\n\n"


def summing_up(text: str = " We counted.\n", **fields: Any) -> FakeRuntime:
    """A model that answers with a summary."""
    return FakeRuntime(lambda submit: [{"text": text, **fields}])


def compact(app: ASGIApp, **body: Any) -> dict[str, Any]:
    reply = ask(app, "POST", "/v1/responses/compact", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def create(app: ASGIApp, **body: Any) -> dict[str, Any]:
    reply = ask(app, "POST", "/v1/responses", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def seen(runtime: FakeRuntime) -> list[tuple[str, str]]:
    """Role and text of the messages that the model was shown last."""
    return [(message.role, message.text) for message in runtime.rendered[-1][0]]


def test_user_messages_and_a_summary_are_left():
    runtime = summing_up()
    reply = compact(make_app(runtime), input=TALK, instructions="You count.")
    assert (reply["object"], reply["id"][:5]) == ("response.compaction", "resp_")
    first, second, compaction = reply["output"]
    assert [first["type"], first["role"], first["status"]] == ["message", "user", "completed"]
    assert first["content"] == [{"type": "input_text", "text": "One."}]
    assert [part["text"] for part in second["content"]] == ["Three.", "Four."]
    assert compaction == {
        "type": "compaction",
        "id": compaction["id"],
        "encrypted_content": sealed_summary("We counted."),
    }
    assert compaction["id"] == f"cmp_{reply['id'].removeprefix('resp_')}"
    assert reply["usage"]["output_tokens"] == 1
    assert reply["usage"]["total_tokens"] == reply["usage"]["input_tokens"] + 1


def test_the_prompt_is_the_conversation_and_a_question():
    runtime = summing_up()
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    compact(make_app(runtime), input=TALK, instructions="You count.", tools=tools, tool_choice="required")
    messages, variables = runtime.rendered[-1]
    roles = ["system", "developer", "user", "assistant", "user", "assistant", "tool", "user"]
    assert [message.role for message in messages] == roles
    assert "summary" in messages[-1].text
    assert [tool["function"]["name"] for tool in variables["tools"]] == ["f"]
    assert variables["enable_thinking"] is False
    (submit,) = runtime.submits
    assert submit.sampling.max_tokens == 8192
    assert submit.outline is None or submit.outline.grammar is None


def test_the_model_does_not_reason_about_a_summary():
    runtime = summing_up()
    compact(make_app(runtime), input="hi", reasoning={"effort": "high"})
    assert runtime.rendered[-1][1]["enable_thinking"] is False
    assert runtime.rendered[-1][1]["reasoning_effort"] == "high", "the prompt begins like the others"


def test_the_summary_is_shown_in_the_next_response_after_the_users_messages():
    app = make_app(runtime := summing_up())
    output = compact(app, input=TALK)["output"]
    create(app, input=[*output, {"role": "user", "content": "Five."}])
    users = [("user", "One."), ("user", "Three.\nFour.")]
    assert seen(runtime) == [*users, ("user", f"{SHOWN}We counted."), ("user", "Five.")]
    assert all(not message.extra for message in runtime.rendered[-1][0]), "templates print all that a message has"


@pytest.mark.parametrize("kind", ["compaction", "compaction_summary"])
def test_a_whole_conversation_with_a_summary_is_shown_as_if_it_was_left_out(kind: str):
    app = make_app(runtime := summing_up())
    old, new = ({"type": kind, "encrypted_content": sealed_summary(text)} for text in ("Old.", "New."))
    create(app, input=[*TALK[:4], old, *TALK[4:], new, {"role": "assistant", "content": "A"}, CALL])
    kept = [("developer", "Be brief."), ("user", "One."), ("user", "Three.\nFour.")]
    assert seen(runtime) == [*kept, ("user", f"{SHOWN}New."), ("assistant", "A")]


def test_system_prompts_are_left_out_of_the_output_and_stay_in_a_whole_conversation():
    app = make_app(runtime := summing_up())
    talk = [{"role": "system", "content": "S"}, *TALK]
    output = compact(app, input=talk)["output"]
    create(app, input=output)
    assert {role for role, _ in seen(runtime)} == {"user"}
    create(app, input=[*talk, output[-1]])
    assert seen(runtime)[:2] == [("system", "S"), ("developer", "Be brief.")]
    create(app, input=output, instructions="S")
    assert seen(runtime)[0] == ("system", "S")


def test_a_summary_is_summarized_again_and_is_no_message_of_the_user():
    app = make_app(runtime := summing_up())
    first = compact(app, input=TALK)["output"]
    second = compact(app, input=[*first, {"role": "user", "content": "Five."}])["output"]
    assert ("user", f"{SHOWN}We counted.") in seen(runtime)
    assert [item["type"] for item in second] == ["message", "message", "message", "compaction"]


def test_stored_turns_and_conversations_can_be_summarized():
    app = make_app(runtime := summing_up("A"))
    talk = ask(app, "POST", "/v1/conversations", json={"items": TALK[:4]}).json()["id"]
    first = create(app, input="Hi.", instructions="Gone.")
    texts = [
        [item["content"][0]["text"] for item in compact(app, **earlier)["output"][:-1]]
        for earlier in (
            {"previous_response_id": first["id"], "input": "More."},
            {"previous_response_id": first["id"]},
            {"conversation": talk},
        )
    ]
    assert texts == [["Hi.", "More."], ["Hi."], ["One."]]
    assert len(ask(app, "GET", f"/v1/conversations/{talk}/items").json()["data"]) == 3, "it stays as it was"
    assert seen(runtime)[:-1] == [("developer", "Be brief."), ("user", "One."), ("assistant", "Two.")]


def test_summaries_are_listed_stored_and_found_by_reference():
    app = make_app(runtime := summing_up())
    item = {"type": "compaction", "encrypted_content": sealed_summary("S")}
    first = create(app, input=[item, {"role": "user", "content": "U"}])
    listed = ask(app, "GET", f"/v1/responses/{first['id']}/input_items?order=asc").json()["data"]
    assert listed[0] == {**item, "id": listed[0]["id"]}
    create(app, previous_response_id=first["id"], input="V")
    assert seen(runtime)[0] == ("user", f"{SHOWN}S")
    create(app, input=[{"type": "item_reference", "id": listed[0]["id"]}])
    assert seen(runtime) == [("user", f"{SHOWN}S")]
    talk = ask(app, "POST", "/v1/conversations", json={"items": [item]}).json()["id"]
    (entry,) = ask(app, "GET", f"/v1/conversations/{talk}/items").json()["data"]
    assert entry == {**item, "id": entry["id"]}
    assert entry["id"].startswith("cmp_")
    create(app, conversation=talk, input="W")
    assert seen(runtime) == [("user", f"{SHOWN}S"), ("user", "W")]


@pytest.mark.parametrize("opaque", ["gAAAA", sealed("a thought"), "stoker-summary-1:%%%", 5, None])
def test_summaries_of_other_servers_are_left_out_and_listed(opaque: Any):
    runtime = FakeRuntime()
    items = [{"type": "compaction", "encrypted_content": opaque}, {"role": "user", "content": "U"}]
    reply = ask(make_app(runtime), "POST", "/v1/responses", json={"input": items})
    assert reply.headers["x-stoker-ignored"] == "input[0]"
    assert seen(runtime) == [("user", "U")]


def test_a_message_cannot_pretend_to_be_a_summary():
    runtime = FakeRuntime()
    fake = {"role": "user", "content": "U", "compacted_summary": "S"}
    response = create(app := make_app(runtime), input=[{"role": "assistant", "content": "A"}, fake])
    assert seen(runtime) == [("assistant", "A"), ("user", "U")]
    listed = ask(app, "GET", f"/v1/responses/{response['id']}/input_items").json()["data"]
    assert {item["type"] for item in listed} == {"message"}


def test_a_summary_without_text_is_an_error():
    reply = ask(make_app(summing_up(" \n")), "POST", "/v1/responses/compact", json={"input": "hi"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "backend_error")


@pytest.mark.parametrize(("num_tokens", "status"), [(127, 400), (128, 200)])
def test_a_context_without_room_for_a_summary_is_named(num_tokens: int, status: int):
    usage = Usage(prompt_tokens=2000, completion_tokens=num_tokens, cached_tokens=0)
    runtime = summing_up("We", finish_reason="length", usage=usage)
    reply = ask(make_app(runtime), "POST", "/v1/responses/compact", json={"input": "hi"})
    assert reply.status_code == status
    if status == 400:
        error = reply.json()["error"]
        assert (error["code"], error["n_prompt_tokens"], error["n_ctx"]) == ("context_length_exceeded", 2000, 2048)


def test_what_cannot_be_summarized_is_refused():
    app = make_app(FakeRuntime())
    for body, parameter in (
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "nonsense"}]}, "input[0]"),
        ({"previous_response_id": "resp_0", "input": "hi"}, "previous_response_id"),
        ({"input": "hi", "stream": True}, "stream"),
    ):
        reply = ask(app, "POST", "/v1/responses/compact", json=body)
        assert reply.json()["error"]["param"] == parameter


def test_a_format_has_no_effect_on_a_summary_and_is_listed():
    app = make_app(runtime := summing_up())
    for form, listed in (({"type": "json_object"}, "text.format"), ({"type": "text"}, None)):
        reply = ask(app, "POST", "/v1/responses/compact", json={"input": TALK, "text": {"format": form}})
        assert (reply.status_code, reply.headers.get("x-stoker-ignored")) == (200, listed)
        assert runtime.submits[-1].outline is None or runtime.submits[-1].outline.grammar is None
    body = {"input": TALK, "text": {"format": {"type": "nonsense"}}}
    reply = ask(app, "POST", "/v1/responses/compact", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "text.format.type")


TRIGGER = {"type": "compaction_trigger"}


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_input_that_ends_with_a_trigger_is_answered_with_a_summary(is_stream: bool):
    app = make_app(runtime := FakeRuntime(lambda submit: [" We", " counted."]))
    first = create(app, input=TALK)
    reply = ask(app, "POST", "/v1/responses", json={"input": [*TALK, TRIGGER], "stream": is_stream})
    assert reply.status_code == 200
    assert "x-stoker-ignored" not in reply.headers
    if is_stream:
        told = [msgspec.json.decode(block.partition("data: ")[2]) for block in reply.text.strip().split("\n\n")]
        assert [event["type"].removeprefix("response.") for event in told] == [
            "created",
            "in_progress",
            "output_item.added",
            "compaction.compacting",
            "output_item.done",
            "completed",
        ]
        assert [event["sequence_number"] for event in told] == list(range(6))
        assert told[2]["item"] == {"type": "compaction", "id": told[3]["item_id"], "encrypted_content": ""}
        response = told[-1]["response"]
        assert response["output"] == [told[4]["item"]]
    else:
        response = reply.json()
    (item,) = response["output"]
    assert item == {"type": "compaction", "id": item["id"], "encrypted_content": sealed_summary("We counted.")}
    assert (response["status"], response["usage"]["output_tokens"]) == ("completed", 2)
    assert "about to be replaced by a summary" in seen(runtime)[-1][1]
    create(app, previous_response_id=response["id"], input="Five.")
    assert seen(runtime)[-2:] == [("user", f"{SHOWN}We counted."), ("user", "Five.")]
    assert [role for role, _ in seen(runtime)] == ["developer", "user", "user", "user", "user"]
    create(app, input=[{"type": "item_reference", "id": item["id"]}])
    assert seen(runtime) == [("user", f"{SHOWN}We counted.")]
    continued = create(app, previous_response_id=first["id"], input=[TRIGGER])
    assert [item["type"] for item in continued["output"]] == ["compaction"]


def test_a_trigger_in_a_conversation_adds_the_summary_to_it():
    app = make_app(runtime := summing_up())
    talk = ask(app, "POST", "/v1/conversations", json={"items": TALK[:4]}).json()["id"]
    create(app, conversation=talk, input=[TRIGGER])
    listed = ask(app, "GET", f"/v1/conversations/{talk}/items?order=asc").json()["data"]
    assert [item["type"] for item in listed] == ["message", "message", "message", "compaction"]
    assert listed[-1]["encrypted_content"] == sealed_summary("We counted.")
    create(app, conversation=talk, input="Five.")
    assert seen(runtime)[-3:] == [("user", "One."), ("user", f"{SHOWN}We counted."), ("user", "Five.")]


def test_a_trigger_in_the_middle_has_no_effect_and_is_listed():
    runtime = FakeRuntime()
    reply = ask(make_app(runtime), "POST", "/v1/responses", json={"input": [TALK[1], TRIGGER, TALK[4]]})
    assert reply.headers["x-stoker-ignored"] == "input[1]"
    assert [item["type"] for item in reply.json()["output"]] == ["message"]


LIMIT = {"context_management": [{"type": "compaction", "compact_threshold": 40}]}


def compacting(summary: str = " We counted.\n") -> FakeRuntime:
    """A model that answers the question for a summary with one, and other questions with a text."""
    return FakeRuntime(lambda submit: [summary] if "about to be replaced" in str(submit.prompt) else ["Fi", "ve."])


def finished(app: ASGIApp, mode: str, **body: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The response to a request that asks for a whole reply, a stream, or work in the background; and the events."""
    if mode == "stream":
        reply = ask(app, "POST", "/v1/responses", json={**body, "stream": True})
        told = [msgspec.json.decode(block.partition("data: ")[2]) for block in reply.text.strip().split("\n\n")]
        return told[-1]["response"], told
    response = create(app, **body, background=mode == "background")
    while response["status"] in ("queued", "in_progress"):
        response = ask(app, "GET", f"/v1/responses/{response['id']}").json()
    return response, []


@pytest.mark.parametrize("mode", ["whole", "stream", "background"])
def test_a_conversation_over_the_threshold_is_compacted_before_the_answer(mode: str):
    app = make_app(runtime := compacting())
    response, told = finished(app, mode, input=TALK, instructions="You count.", **LIMIT)
    first, answer = response["output"]
    assert first == {"type": "compaction", "id": first["id"], "encrypted_content": sealed_summary("We counted.")}
    assert (answer["type"], answer["content"][0]["text"], response["status"]) == ("message", "Five.", "completed")
    summary, final = runtime.submits
    assert summary.request_id != final.request_id
    kept = [("system", "You count."), ("developer", "Be brief."), ("user", "One."), ("user", "Three.\nFour.")]
    assert seen(runtime) == [*kept, ("user", f"{SHOWN}We counted.")]
    assert response["usage"]["output_tokens"] == 3, "one step of the summary, and two of the answer"
    assert response["usage"]["input_tokens"] == sum(len(submit.prompt) for submit in runtime.submits)
    if mode == "stream":
        kinds = ["created", "in_progress", "output_item.added", "compaction.compacting", "output_item.done"]
        assert [event["type"].removeprefix("response.") for event in told[:6]] == [*kinds, "output_item.added"]
        assert [event["sequence_number"] for event in told] == list(range(len(told)))
        assert [event["output_index"] for event in told if "output_index" in event] == [0] * 3 + [1] * (len(told) - 6)
        assert [event["item"] for event in told if event["type"] == "response.output_item.done"] == [first, answer]
    create(app, previous_response_id=response["id"], input="Six.")
    assert seen(runtime)[-3:] == [("user", f"{SHOWN}We counted."), ("assistant", "Five."), ("user", "Six.")]


def test_only_a_conversation_over_the_threshold_is_compacted():
    app = make_app(runtime := compacting())
    count = ask(app, "POST", "/v1/responses/input_tokens", json={"input": TALK}).json()["input_tokens"]
    for threshold, num_items in ((count, 1), (count - 1, 2), (None, 1)):
        entry = {"type": "compaction", "compact_threshold": threshold}
        reply = ask(app, "POST", "/v1/responses", json={"input": TALK, "context_management": [entry]})
        assert len(reply.json()["output"]) == num_items
        assert "x-stoker-ignored" not in reply.headers
    create(app, input="Long. " * 100, **LIMIT)
    assert len(runtime.submits) == 5, "a summary would replace nothing"


def test_a_stored_conversation_is_compacted_once():
    app = make_app(runtime := compacting())
    talk = ask(app, "POST", "/v1/conversations", json={"items": TALK[:4]}).json()["id"]
    create(app, conversation=talk, input="Five?", **LIMIT)
    listed = ask(app, "GET", f"/v1/conversations/{talk}/items?order=asc").json()["data"]
    assert [item["type"] for item in listed[-3:]] == ["message", "compaction", "message"]
    create(app, conversation=talk, input="Six.")
    assert seen(runtime)[-3:] == [("user", f"{SHOWN}We counted."), ("assistant", "Five."), ("user", "Six.")]


def test_an_answer_without_text_after_a_summary_is_a_message():
    app = make_app(FakeRuntime(lambda submit: ["S"] if "about to be replaced" in str(submit.prompt) else [""]))
    assert [item["type"] for item in create(app, input=TALK, **LIMIT)["output"]] == ["compaction", "message"]


def test_an_answer_after_a_summary_keeps_the_log_probabilities_of_tokens_before_its_text():
    half = {"text": "", "logprobs": [position("a", -0.5, logprob("a", -0.5))]}
    steps = [half, {"text": "ab", "logprobs": [position("b", -0.5, logprob("b", -0.5))]}]
    app = make_app(FakeRuntime(lambda submit: ["S"] if "about to be replaced" in str(submit.prompt) else steps))
    body = {"input": TALK, "include": ["message.output_text.logprobs"]}
    plain, after = (finished(app, "stream", **body, **more)[0]["output"][-1]["content"] for more in ({}, LIMIT))
    assert plain[0]["logprobs"]
    assert after == plain


@pytest.mark.parametrize("mode", ["whole", "stream", "background"])
def test_a_failed_summary_ends_the_response(mode: str):
    app = make_app(runtime := compacting("  "))
    if mode == "whole":
        reply = ask(app, "POST", "/v1/responses", json={"input": TALK, **LIMIT})
        assert (reply.status_code, "the model wrote no summary" in reply.text) == (500, True)
    else:
        response, _ = finished(app, mode, input=TALK, **LIMIT)
        assert response["status"] == "failed"
        assert "the model wrote no summary" in response["error"]["message"]
    assert len(runtime.submits) == 1


@pytest.mark.parametrize("mode", ["whole", "stream"])
def test_a_refused_answer_after_a_summary_ends_the_response(mode: str):
    app = make_app(runtime := compacting())
    runtime.refuse = lambda submit: BackendError("full") if runtime.submits[1:] else None
    reply = ask(app, "POST", "/v1/responses", json={"input": TALK, "stream": mode == "stream", **LIMIT})
    assert (reply.status_code == 200) == (mode == "stream")
    assert "full" in reply.text


@pytest.mark.parametrize("num_begun", [1, 2])
@pytest.mark.parametrize("is_stream", [False, True])
def test_leaving_during_the_summary_or_the_answer_frees_everything(is_stream: bool, num_begun: int):
    async def test() -> None:
        hold = held_open(asyncio.Event())
        runtime = FakeRuntime(lambda submit: hold(submit) if len(runtime.submits) == num_begun else ["S"])
        client = RawClient(make_app(runtime), "/v1/responses", {"input": TALK, "stream": is_stream, **LIMIT})
        await runtime.arrived(num_begun)
        client.leave()
        await client.task
        assert (len(runtime.submits), runtime.held) == (num_begun, set())

    run(test())


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_access_log_counts_the_summary_and_the_answer(is_stream: bool, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO", logger="stoker.server.access")
    app = make_app(runtime := compacting(), log_format="json")
    ask(app, "POST", "/v1/responses", json={"input": TALK, "stream": is_stream, **LIMIT})
    about = msgspec.json.decode(caplog.messages[-1])
    counts = about["prompt_tokens"], about["cached_tokens"], about["completion_tokens"]
    assert counts == (sum(len(submit.prompt) for submit in runtime.submits), 6, 3)


@pytest.mark.parametrize(
    "value",
    [
        [{"type": "nonsense"}],
        [{"compact_threshold": 9}],
        [{"type": "compaction", "compact_threshold": 0}],
        [{"type": "compaction", "compact_threshold": "9"}],
        [{"type": "compaction", "other": 9}],
        [{"type": "compaction"}, {"type": "compaction"}],
        {"edits": []},
    ],
)
def test_a_malformed_context_management_is_an_error(value: Any):
    app = make_app(runtime := compacting())
    reply = ask(app, "POST", "/v1/responses", json={"input": TALK, "context_management": value})
    assert (reply.status_code, runtime.submits) == (400, [])
    assert reply.json()["error"]["param"].startswith("context_management")


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_trigger_without_a_summary_is_an_error(is_stream: bool):
    body = {"input": [TRIGGER], "stream": is_stream}
    app = make_app(summing_up("  "))
    assert ask(app, "POST", "/v1/responses", json=body).json()["error"]["param"] == "input"
    reply = ask(app, "POST", "/v1/responses", json={**body, "input": [*TALK, TRIGGER]})
    assert reply.status_code == (200 if is_stream else 500)
    assert "the model wrote no summary" in reply.text


def test_a_summary_can_be_written_in_the_background():
    app = make_app(summing_up())
    begun = create(app, input=[*TALK, TRIGGER], background=True)
    path = f"/v1/responses/{begun['id']}"
    while (found := ask(app, "GET", path).json())["status"] in ("queued", "in_progress"):
        pass
    assert [item["type"] for item in found["output"]] == ["compaction"]


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 101},
        {"background": True, "store": False},
        {"max_output_tokens": 5, "max_tokens": 6},
        {"top_logprobs": 10_000},
        {"context_management": [{"type": "compaction"}, {"type": "compaction"}]},
        {"logit_bias": {"a": True}},
        {"logit_bias": {"a" * 70_000: 1}},
        {"text": {"format": {"type": "nonsense"}}},
        {"timeout": -1},
        {"priority": 2**40},
        {"session_id": "x" * 10_000},
    ],
)
def test_a_request_with_a_trigger_is_checked_like_others(fields: dict[str, Any]):
    app = make_app(runtime := summing_up())
    with_trigger, without = (
        ask(app, "POST", "/v1/responses", json={"input": [TALK[1], *trigger], **fields}) for trigger in ([TRIGGER], [])
    )
    assert (with_trigger.status_code, with_trigger.json()) == (400, without.json())
    assert runtime.submits == []


def test_a_summary_is_computed_for_the_client_that_asks_and_fields_without_effect_are_listed():
    app = make_app(runtime := summing_up())
    asked = {"cache_prompt": False, "timeout": 7, "priority": -3, "session_id": "s", "user": "anna", "lora": "a"}
    unused = {
        "temperature": 0.5,
        "max_output_tokens": 5,
        "logit_bias": {"a": -1},
        "top_logprobs": 1,
        "include": [],
        "parallel_tool_calls": False,
        **LIMIT,
    }
    text = {"format": {"type": "json_object"}}
    body = {"input": [*TALK, TRIGGER], "text": text, **asked, **unused}
    reply = ask(app, "POST", "/v1/responses", json=body)
    assert [item["type"] for item in reply.json()["output"]] == ["compaction"]
    assert set(reply.headers["x-stoker-ignored"].split(", ")) == {*unused, "text.format"}
    (submit,) = runtime.submits
    assert (submit.cache_prompt, submit.timeout_s, submit.priority, submit.client_key) == (False, 7, -3, "anna")
    assert submit.adapters == [AdapterChoice(name="a")]
    assert submit.session is not None
    assert (submit.sampling, submit.text_bias) == (SamplingParams(max_tokens=8192), {})
    assert submit.outline is None or submit.outline.grammar is None
