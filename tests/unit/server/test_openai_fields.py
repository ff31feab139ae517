"""What values the fields of OpenAI's endpoints take. That every row of the field table is true, is shown elsewhere."""

import logging
from math import inf
from typing import Any

import msgspec
import pytest

from stoker.server import fields as fields_module
from stoker.server.request.chat import CHAT_FIELDS, ChatCompletionRequest
from tests.projector_files import data_url, picture
from tests.unit.server import fake_runtime
from tests.unit.server.fake_runtime import CARD, FakeRuntime, ask, chat, complete, events, make_app

HONOURED = sorted(CHAT_FIELDS.keys() & set(ChatCompletionRequest.__struct_fields__))


def test_true_is_not_one_and_zero_is_not_false():
    assert chat(FakeRuntime(), best_of=1).status_code == 200
    assert chat(FakeRuntime(), best_of=True).status_code == 400
    assert chat(FakeRuntime(), include_stop_str_in_output=0).status_code == 400


@pytest.mark.parametrize("nothing", [{"type": "text", "schema": None}, {"type": "text", "schema": {}}])
def test_a_format_of_text_asks_for_nothing(nothing: Any):
    runtime = FakeRuntime()
    assert chat(runtime, response_format=nothing).status_code == 200
    assert runtime.submits[0].outline is None or runtime.submits[0].outline.grammar is None


def test_a_constraint_in_its_older_and_its_newer_field_is_one():
    runtime = FakeRuntime()
    text = 'start: "a"'
    fields = {"guided_grammar": text, "structured_outputs": {"grammar": text}, "guided_decoding_backend": "guidance"}
    assert chat(runtime, **fields).status_code == 200
    outline = runtime.submits[0].outline
    assert outline is not None
    assert outline.grammar is not None
    assert outline.grammar.text == text


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"json_schema": "{"}, "json_schema"),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"regex": "a", "grammar": 'root ::= "a"'}, "regex"),
        ({"guided_regex": "a", "structured_outputs": {"regex": "b"}}, "structured_outputs"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"functions": [], "tools": []}, "functions"),
    ],
)
def test_what_is_malformed_is_named(fields: dict[str, Any], parameter: str):
    response = chat(FakeRuntime(), **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == parameter


TOKEN_IDS = ("stop_token_ids", "stop_ids", "allowed_token_ids", "banned_token_ids", "banned_tokens")


@pytest.mark.parametrize("name", HONOURED)
def test_wrong_type_names_the_field(name: str):
    wrong: Any = [[1]] if name in TOKEN_IDS else {"a": [{}]}
    wrong = (
        "text" if name in ("chat_template_kwargs", "messages", "stream_options", "response_format", "stoker") else wrong
    )
    wrong = 1 if name in ("json_schema", "guided_json", "structured_outputs", "function_call", "tool_choice") else wrong
    response = chat(FakeRuntime(), **{name: wrong})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(name)


def test_top_logprobs_need_logprobs():
    assert chat(FakeRuntime(), top_logprobs=2).json()["error"]["param"] == "top_logprobs"
    assert chat(FakeRuntime(), logprobs=True, top_logprobs=21).json()["error"]["param"] == "top_logprobs"
    assert chat(FakeRuntime(), logprobs=False, top_logprobs=0).status_code == 200


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict", "num_predict"])
def test_limits_of_max_tokens(name: str):
    runtime = FakeRuntime()
    for value in (-1, 0):
        assert chat(runtime, **{name: value}).status_code == 200
    assert [submit.sampling.max_tokens for submit in runtime.submits] == [-1, 0]
    error = chat(FakeRuntime(), **{name: -2}).json()["error"]
    assert (error["param"], f"`{name}` must be" in error["message"]) == (name, True)


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


@pytest.mark.parametrize("sent", [{"hello": 1, " 5": False}, [["hello", 1], [" 5", False]]])
def test_logit_bias_of_a_text_is_for_the_engine_to_tokenize(sent: Any):
    runtime = FakeRuntime()
    assert chat(runtime, logit_bias=sent).status_code == 200
    assert runtime.submits[0].sampling.logit_bias is None
    assert runtime.submits[0].text_bias == {"hello": 1.0, " 5": -inf}


@pytest.mark.parametrize("sent", [{"5": True}, {"a": True}, {"5": "x"}, [[5]], [5], [[1.5, 1]], "x"])
def test_malformed_logit_bias_is_refused(sent: Any):
    response = chat(FakeRuntime(), logit_bias=sent)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("logit_bias")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", ["x"] * 257),
        ("stop", "x" * 16385),
        ("dry_sequence_breakers", ["x"] * 257),
        pytest.param("logit_bias", None, marks=pytest.mark.slow),
    ],
)
def test_what_costs_with_every_token_is_bounded(name: str, value: Any):
    response = chat(FakeRuntime(), **{name: value or {str(token_id): 0 for token_id in range(2**20 + 1)}})
    assert (response.status_code, response.json()["error"]["param"]) == (400, name)
    assert "more than" in response.json()["error"]["message"]


def test_texts_with_a_bias_are_bounded():
    assert chat(FakeRuntime(), logit_bias={"x" * 65536: 1}).status_code == 200
    response = chat(FakeRuntime(), logit_bias={"x" * 65536: 1, "y": 1})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "logit_bias")
    assert "more than 65536" in response.json()["error"]["message"]


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


@pytest.mark.parametrize("name", ["prompt", *TOKEN_IDS, "logit_bias"])
def test_token_id_of_more_than_64_bits_is_refused_by_name(name: str):
    forms: list[Any] = [[[HUGE, 1]], {str(HUGE): 1}, {"9" * 5000: 1}] if name == "logit_bias" else [[5, HUGE]]
    for form in forms:
        response = complete(FakeRuntime(), **{name: form})
        assert response.status_code == 400
        assert response.json()["error"]["param"].startswith(name)


@pytest.mark.parametrize("timeout", [0, -1])
def test_timeout_must_be_positive(timeout: float):
    assert chat(FakeRuntime(), timeout=timeout).json()["error"]["param"] == "timeout"


@pytest.mark.parametrize("fields", [{"timeout_ms": 0}, {"timeout_ms": -5}, {"timeout": 1, "timeout_ms": 999}])
def test_milliseconds_must_be_positive_and_agree_with_seconds(fields: dict[str, Any]):
    assert chat(FakeRuntime(), **fields).json()["error"]["param"] == "timeout_ms"
    assert chat(FakeRuntime(), timeout=1, timeout_ms=1000).status_code == 200


@pytest.mark.parametrize("name", ["top_a", "eta_cutoff", "epsilon_cutoff", "tfs", "tfs_z", "smoothing_factor"])
def test_a_stage_that_is_not_there_is_refused_and_named(name: str):
    response = chat(FakeRuntime(), **{name: 0.5})
    assert (response.status_code, response.json()["error"]["param"]) == (400, name)
    assert chat(FakeRuntime(), **{name: 1 if name.startswith("tfs") else 0}).status_code == 200


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


def test_suffix_is_refused_where_it_cannot_be_honoured(monkeypatch: pytest.MonkeyPatch):
    for body in ({"prompt": [1, 2]}, {"echo": True}):
        assert complete(FakeRuntime(), suffix="x", **body).json()["error"]["param"] == "suffix"
    monkeypatch.setattr(fake_runtime, "CARD", msgspec.structs.replace(CARD, fill_tokens=None))
    error = complete(FakeRuntime(), suffix="x").json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "suffix")
    assert "no tokens for filling in the middle" in error["message"]


def test_texts_around_a_gap_cannot_spell_special_tokens():
    runtime = FakeRuntime()
    complete(runtime, suffix="x")
    complete(runtime)
    assert [submit.parse_special for submit in runtime.submits] == [False, True]


@pytest.mark.parametrize(("n", "best_of", "stream"), [(2, 1, False), (1, 0, False), (1, 65, False), (1, 2, True)])
def test_best_of_must_make_sense(n: int, best_of: int, stream: bool):
    assert complete(FakeRuntime(), n=n, best_of=best_of, stream=stream).json()["error"]["param"] == "best_of"
    assert complete(FakeRuntime(), n=2, best_of=2, stream=True).status_code == 200


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


def test_image_for_a_model_that_takes_none_is_refused():
    content = [{"type": "image_url", "image_url": {"url": data_url(picture("red"))}}]
    response = chat(FakeRuntime(), messages=[{"role": "user", "content": content}])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"
    assert "--mmproj" in response.json()["error"]["message"]


@pytest.mark.parametrize("messages", [None, [], [{}], [{"role": "user", "content": 5}], ["hi"], "hi"])
def test_malformed_messages_are_refused(messages: Any):
    response = ask(make_app(FakeRuntime()), "POST", "/v1/chat/completions", json={"messages": messages})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("messages")


def test_stream_false_is_no_stream():
    assert chat(FakeRuntime(), stream=False).json()["object"] == "chat.completion"
    assert events(chat(FakeRuntime(), stream=True))[-1] == "[DONE]"


def test_a_whole_number_may_be_written_as_a_float():
    runtime = FakeRuntime()
    body = {"max_tokens": 7.0, "top_k": 5.0, "n": 2.0, "temperature": 1.0, "stop_token_ids": None}
    assert chat(runtime, **body).status_code == 200
    sampling = runtime.submits[0].sampling
    assert (sampling.max_tokens, sampling.top_k, len(runtime.submits)) == (7, 5, 2)
    assert sampling.temperature == 1.0


@pytest.mark.parametrize("value", [7.5, 1e30, "7", True, [7]])
def test_what_is_no_whole_number_is_refused_by_its_name(value: object):
    response = chat(FakeRuntime(), max_tokens=value)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize(("stop", "strings"), [("", ()), ([""], ()), (["", "a"], ("a",))])
def test_empty_stop_strings_stop_nothing(stop: str | list[str], strings: tuple[str, ...]):
    runtime = FakeRuntime()
    assert chat(runtime, stop=stop).status_code == 200
    assert runtime.submits[0].sampling.stop_strings == strings
