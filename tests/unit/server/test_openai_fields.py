"""Every row of the field table is probed: what it promises is what happens."""

import logging
from collections.abc import Callable
from math import inf
from typing import Any

import msgspec
import pytest

from stoker.engine.protocol import Submit
from stoker.server.wire import fields as fields_module
from stoker.server.wire.fields import Honoured, Ignored, Refused
from stoker.server.wire.openai import ChatCompletionRequest, CompletionRequest
from stoker.server.wire.openai_fields import CHAT_FIELDS, COMPLETION_FIELDS
from tests.unit.server.fake_runtime import CARD, FakeRuntime, ask, chat, complete, events, make_app

TABLES = {"chat": (CHAT_FIELDS, chat), "completions": (COMPLETION_FIELDS, complete)}


def sampled(name: str, value: Any) -> Callable[[list[Submit]], bool]:
    return lambda submits: getattr(submits[0].sampling, name) == value


def submitted(name: str, value: Any) -> Callable[[list[Submit]], bool]:
    return lambda submits: getattr(submits[0], name) == value


# field -> what is sent, what the engine must get because of it
ENGINE_PROBES: dict[str, tuple[Any, Callable[[list[Submit]], bool]]] = {
    "n": (2, lambda submits: len(submits) == 2),
    "user": ("u1", submitted("client_key", "u1")),
    "safety_identifier": ("s1", submitted("client_key", "s1")),
    "priority": (-3, submitted("priority", -3)),
    "timeout": (2.5, submitted("timeout_s", 2.5)),
    "cache_prompt": (False, submitted("cache_prompt", False)),
    "max_tokens": (5, sampled("max_tokens", 5)),
    "max_completion_tokens": (6, sampled("max_tokens", 6)),
    "n_predict": (7, sampled("max_tokens", 7)),
    "min_tokens": (2, sampled("min_tokens", 2)),
    "ignore_eos": (True, sampled("ignore_eos", True)),
    "stop": (["a", "b"], sampled("stop_strings", ("a", "b"))),
    "stop_token_ids": ([4], sampled("stop_token_ids", [4])),
    "seed": (0, sampled("seed", 0)),
    "temperature": (0, sampled("temperature", 0)),
    "dynatemp_range": (0.5, sampled("dynatemp_range", 0.5)),
    "dynatemp_exponent": (2, sampled("dynatemp_exponent", 2)),
    "top_k": (-1, sampled("top_k", -1)),
    "top_p": (0.5, sampled("top_p", 0.5)),
    "min_p": (0.1, sampled("min_p", 0.1)),
    "typical_p": (0.9, sampled("typical_p", 0.9)),
    "top_n_sigma": (1.5, sampled("top_n_sigma", 1.5)),
    "xtc_probability": (0.5, sampled("xtc_probability", 0.5)),
    "xtc_threshold": (0.2, sampled("xtc_threshold", 0.2)),
    "dry_multiplier": (0.8, sampled("dry_multiplier", 0.8)),
    "dry_base": (1.5, sampled("dry_base", 1.5)),
    "dry_allowed_length": (3, sampled("dry_allowed_length", 3)),
    "dry_penalty_last_n": (-1, sampled("dry_penalty_last_n", -1)),
    "dry_sequence_breakers": (["x"], sampled("dry_sequence_breakers", ["x"])),
    "presence_penalty": (-1, sampled("presence_penalty", -1)),
    "frequency_penalty": (1, sampled("frequency_penalty", 1)),
    "repetition_penalty": (1.1, sampled("repetition_penalty", 1.1)),
    "repeat_penalty": (1.2, sampled("repetition_penalty", 1.2)),
    "repeat_last_n": (0, sampled("penalty_last_n", 0)),
    "mirostat": (2, sampled("mirostat", 2)),
    "mirostat_tau": (4, sampled("mirostat_tau", 4)),
    "mirostat_eta": (0.2, sampled("mirostat_eta", 0.2)),
    "logit_bias": ({"5": 1.5}, sampled("logit_bias", {5: 1.5})),
    "allowed_token_ids": ([1, 2], sampled("allowed_token_ids", [1, 2])),
}
CHAT_ENGINE_PROBES: dict[str, tuple[Any, Callable[[list[Submit]], bool]]] = {
    **ENGINE_PROBES,
    "messages": ([{"role": "user", "content": "probe"}], submitted("prompt", "<user>probe")),
    "logprobs": (True, sampled("logprobs", 0)),
}
COMPLETION_ENGINE_PROBES: dict[str, tuple[Any, Callable[[list[Submit]], bool]]] = {
    **ENGINE_PROBES,
    "prompt": ("probe", submitted("prompt", "probe")),
    "logprobs": (3, sampled("logprobs", 3)),
}
PROBED_ELSEWHERE = {
    "chat": {
        "model",
        "stream",
        "stream_options",
        "top_logprobs",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template_kwargs",
        "reasoning_effort",
    },
    "completions": {"model", "stream", "stream_options", "echo"},
}


def rows(api: str, kind: type) -> list[str]:
    return [name for name, policy in TABLES[api][0].items() if isinstance(policy, kind)]


@pytest.mark.parametrize(("api", "name"), [(api, name) for api in TABLES for name in rows(api, Refused)])
def test_refused_field_is_an_error_that_names_it(api: str, name: str):
    runtime = FakeRuntime()
    response = TABLES[api][1](runtime, **{name: {"probe": [1]}})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", name)
    assert runtime.submits == []


@pytest.mark.parametrize(("api", "name"), [(api, name) for api in TABLES for name in rows(api, Refused)])
def test_refused_field_passes_if_it_asks_for_nothing(api: str, name: str):
    table, call = TABLES[api]
    policy = table[name]
    assert isinstance(policy, Refused)
    for value in (None, *policy.neutral):
        assert call(FakeRuntime(), **{name: value}).status_code == 200


def test_true_is_not_one_and_zero_is_not_false():
    assert chat(FakeRuntime(), best_of=1).status_code == 200
    assert chat(FakeRuntime(), best_of=True).status_code == 400
    assert chat(FakeRuntime(), include_stop_str_in_output=0).status_code == 400


@pytest.mark.parametrize(("api", "name"), [(api, name) for api in TABLES for name in rows(api, Ignored)])
def test_ignored_field_changes_nothing(api: str, name: str):
    call = TABLES[api][1]
    with_it, without = FakeRuntime(), FakeRuntime()
    assert call(with_it, **{name: {"any": ["thing"]}}).status_code == 200
    call(without)
    anonymous = [msgspec.structs.replace(r.submits[0], request_id="") for r in (with_it, without)]
    assert anonymous[0] == anonymous[1]


@pytest.mark.parametrize("api", TABLES)
def test_every_honoured_field_has_a_probe(api: str):
    probes = {"chat": CHAT_ENGINE_PROBES, "completions": COMPLETION_ENGINE_PROBES}[api]
    wire = {"chat": ChatCompletionRequest, "completions": CompletionRequest}[api]
    assert set(rows(api, Honoured)) == set(wire.__struct_fields__)
    assert set(probes) | PROBED_ELSEWHERE[api] == set(wire.__struct_fields__)


@pytest.mark.parametrize("name", CHAT_ENGINE_PROBES)
def test_honoured_chat_field_reaches_the_engine(name: str):
    value, arrives = CHAT_ENGINE_PROBES[name]
    check(chat, name, value, arrives)


@pytest.mark.parametrize("name", COMPLETION_ENGINE_PROBES)
def test_honoured_completion_field_reaches_the_engine(name: str):
    value, arrives = COMPLETION_ENGINE_PROBES[name]
    check(complete, name, value, arrives)


def check(call: Any, name: str, value: Any, arrives: Callable[[list[Submit]], bool]) -> None:
    runtime, untouched = FakeRuntime(), FakeRuntime()
    response = call(runtime, **{name: value})
    assert response.status_code == 200, response.text
    assert arrives(runtime.submits)
    assert call(untouched, **({} if name in ("messages", "prompt") else {name: None})).status_code == 200
    assert not arrives(untouched.submits), "null is the same as not given"


@pytest.mark.parametrize("name", sorted(set(rows("chat", Honoured)) - {"messages"}))
def test_null_is_unset(name: str):
    assert chat(FakeRuntime(), **{name: None}).status_code == 200


@pytest.mark.parametrize("name", sorted(set(rows("chat", Honoured))))
def test_wrong_type_names_the_field(name: str):
    wrong: Any = [[1]] if name in ("stop_token_ids", "allowed_token_ids") else {"a": [{}]}
    wrong = "text" if name in ("chat_template_kwargs", "messages", "stream_options") else wrong
    response = chat(FakeRuntime(), **{name: wrong})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(name)


def test_top_logprobs_need_logprobs():
    assert chat(FakeRuntime(), top_logprobs=2).json()["error"]["param"] == "top_logprobs"
    assert chat(FakeRuntime(), logprobs=True, top_logprobs=21).json()["error"]["param"] == "top_logprobs"
    assert chat(FakeRuntime(), logprobs=False, top_logprobs=0).status_code == 200


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_limits_of_max_tokens(name: str):
    runtime = FakeRuntime()
    assert chat(runtime, **{name: -1}).status_code == 200
    assert runtime.submits[0].sampling.max_tokens is None
    assert chat(FakeRuntime(), **{name: 0}).json()["error"]["param"] == "max_tokens"


def test_fields_that_mean_the_same_must_agree():
    assert chat(FakeRuntime(), max_tokens=5, max_completion_tokens=5).status_code == 200
    assert chat(FakeRuntime(), max_tokens=5, max_completion_tokens=6).status_code == 400
    assert chat(FakeRuntime(), repeat_penalty=1.1, repetition_penalty=1.2).status_code == 400


@pytest.mark.parametrize(
    ("sent", "bias"),
    [
        ({"5": -100, "6": False}, {5: -100.0, 6: -inf}),
        ([[5, 1], [6, False]], {5: 1.0, 6: -inf}),
        ([["5", 2.5]], {5: 2.5}),
        ({}, None),
        ([], None),
    ],
)
def test_forms_of_logit_bias(sent: Any, bias: dict[int, float] | None):
    runtime = FakeRuntime()
    assert chat(runtime, logit_bias=sent).status_code == 200
    assert runtime.submits[0].sampling.logit_bias == bias


@pytest.mark.parametrize("sent", [{"hello": 1}, [["hello", 1]], {"5": True}, {"5": "x"}, [[5]], [5], {"²": 1}, "x"])
def test_malformed_logit_bias_is_refused(sent: Any):
    response = chat(FakeRuntime(), logit_bias=sent)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("logit_bias")


@pytest.mark.parametrize(("sent", "seed"), [(0, 0), (-1, None), (2**63, 2**63), (-2, 2**64 - 2)])
def test_seeds(sent: int, seed: int | None):
    runtime = FakeRuntime()
    assert chat(runtime, seed=sent).status_code == 200
    assert runtime.submits[0].sampling.seed == seed


HUGE = 10**400
INTEGERS = ["max_tokens", "n_predict", "top_k", "min_tokens", "seed", "n", "priority", "repeat_last_n", "top_logprobs"]


@pytest.mark.parametrize("value", [HUGE, -HUGE, 2**64])
@pytest.mark.parametrize("name", INTEGERS)
def test_integer_of_more_than_64_bits_is_refused_by_name(name: str, value: int):
    response = chat(FakeRuntime(), logprobs=True, **{name: value})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name


@pytest.mark.parametrize("name", ["prompt", "stop_token_ids", "allowed_token_ids", "logit_bias"])
def test_token_id_of_more_than_64_bits_is_refused_by_name(name: str):
    forms: list[Any] = [[[HUGE, 1]], {str(HUGE): 1}, {"9" * 5000: 1}] if name == "logit_bias" else [[5, HUGE]]
    for form in forms:
        response = complete(FakeRuntime(), **{name: form})
        assert response.status_code == 400
        assert response.json()["error"]["param"].startswith(name)


@pytest.mark.parametrize("timeout", [0, -1])
def test_timeout_must_be_positive(timeout: float):
    assert chat(FakeRuntime(), timeout=timeout).json()["error"]["param"] == "timeout"


def test_timeout_is_bounded_by_the_server():
    runtime = FakeRuntime()
    app = make_app(runtime, request_timeout_s=10.0)
    for body in ({"timeout": 99}, {"timeout": 3}, {}):
        ask(app, "POST", "/v1/completions", json={"prompt": "x", **body})
    assert [submit.timeout_s for submit in runtime.submits] == [10, 3, 10]


def test_anonymous_clients_are_told_apart_by_address():
    runtime = FakeRuntime()
    chat(runtime)
    assert runtime.submits[0].client_key == "127.0.0.1"


def test_generation_prompt_flags():
    runtime = FakeRuntime()
    chat(runtime, add_generation_prompt=False)
    chat(runtime, continue_final_message=True)
    flags = [(v["add_generation_prompt"], v["continue_final_message"]) for _, v in runtime.rendered]
    assert flags == [(False, False), (True, True)]
    both = chat(runtime, add_generation_prompt=True, continue_final_message=True)
    assert both.json()["error"]["param"] == "continue_final_message"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "continue_final_message"])
def test_template_variables_cannot_replace_the_conversation(name: str):
    response = chat(FakeRuntime(), chat_template_kwargs={name: []})
    assert response.json()["error"]["param"] == "chat_template_kwargs"


def test_echo_is_refused_where_it_cannot_be_whole():
    assert complete(FakeRuntime(), echo=True, logprobs=1).json()["error"]["param"] == "echo"
    assert complete(FakeRuntime(), echo=True, prompt=[1, 2]).json()["error"]["param"] == "echo"


@pytest.mark.parametrize("n", [0, -1, 65])
def test_number_of_choices_is_bounded(n: int):
    assert chat(FakeRuntime(), n=n).json()["error"]["param"] == "n"


def test_more_choices_than_could_ever_run_and_wait_are_refused_for_good():
    capacity = CARD.parallel + CARD.max_queue
    runtime = FakeRuntime()
    assert chat(runtime, n=capacity).status_code == 200
    response = chat(runtime, n=capacity + 1)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
    assert len(runtime.submits) == capacity


def test_stream_options_without_stream_do_no_harm():
    assert chat(FakeRuntime(), stream_options={"include_usage": True}).json()["usage"]["completion_tokens"] == 3


def test_unknown_field_is_ignored_and_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fields_module, "_logged_unknown", set())
    with caplog.at_level(logging.DEBUG, logger="stoker.server"):
        for _ in range(3):
            assert chat(FakeRuntime(), some_new_field="secret").status_code == 200
    lines = [r.getMessage() for r in caplog.records if "some_new_field" in r.getMessage()]
    assert len(lines) == 1
    assert "secret" not in lines[0]


def test_image_is_refused():
    content = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    response = chat(FakeRuntime(), messages=[{"role": "user", "content": content}])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].content[0]"


@pytest.mark.parametrize("messages", [None, [], [{}], [{"role": "user", "content": 5}], ["hi"], "hi"])
def test_malformed_messages_are_refused(messages: Any):
    response = ask(make_app(FakeRuntime()), "POST", "/v1/chat/completions", json={"messages": messages})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("messages")


def test_stream_false_is_no_stream():
    assert chat(FakeRuntime(), stream=False).json()["object"] == "chat.completion"
    assert events(chat(FakeRuntime(), stream=True))[-1] == "[DONE]"
