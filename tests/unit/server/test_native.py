"""llama-server's own endpoints and ours, to the letter."""

from __future__ import annotations

from math import inf
from typing import Any

import httpx
import msgspec
import pytest

from stoker.core.slot_state import SlotState
from stoker.engine.cards import ModelCard
from stoker.engine.health import Health
from stoker.engine.stats import EngineStats
from stoker.errors import BackendError
from tests.unit.server.fake_runtime import CARD, FakeRuntime, ask, events, logprob, make_app, position


def complete(runtime: FakeRuntime, **body: Any) -> httpx.Response:
    return ask(make_app(runtime), "POST", "/completion", json={"prompt": "hi", **body})


def post(runtime: FakeRuntime, path: str, **body: Any) -> httpx.Response:
    return ask(make_app(runtime), "POST", path, json=body)


def test_whole_completion():
    reply = complete(FakeRuntime()).json()
    assert reply.pop("timings")["predicted_n"] == 3
    assert reply.pop("generation_settings")
    assert reply == {
        "index": 0,
        "content": "Hello!",
        "tokens": [],
        "stop": True,
        "tokens_predicted": 3,
        "tokens_evaluated": 2,
        "model": "tiny",
        "stop_type": "eos",
        "stopping_word": "",
        "has_new_line": False,
        "tokens_cached": 3,
        "truncated": False,
    }


def test_stream_has_no_done_and_its_parts_are_the_whole():
    parts = events(complete(FakeRuntime(), stream=True, return_tokens=True))
    assert "".join(part["content"] for part in parts) == "Hello!"
    assert [part["stop"] for part in parts] == [False, False, True]
    assert [part["tokens"] for part in parts] == [[1], [2], [3]]
    assert parts[-1]["stop_type"] == "eos"
    assert "timings" not in parts[0]


@pytest.mark.parametrize(
    ("last", "kind", "word"),
    [
        ({"text": "", "finish_reason": "length"}, "limit", ""),
        ({"text": "", "finish_reason": "stop", "stop_match": "END"}, "word", "END"),
        ({"text": "", "finish_reason": "stop", "stop_match": 7}, "eos", ""),
    ],
)
def test_reasons_to_stop(last: dict[str, Any], kind: str, word: str):
    for stream in (False, True):
        response = complete(FakeRuntime(lambda submit: ["a", last]), stream=stream)
        reply = events(response)[-1] if stream else response.json()
        assert (reply["stop_type"], reply["stopping_word"]) == (kind, word)


@pytest.mark.parametrize(
    ("prompt", "given"),
    [
        ("hi", ["hi"]),
        ([1, 2], [[1, 2]]),
        ([1, "a", 2], [[1, "a", 2]]),
        (["a", "b"], ["a", "b"]),
        ([[1], "b"], [[1], "b"]),
        ({"prompt_string": "hi"}, ["hi"]),
        ([{"prompt_string": "a", "multimodal_data": []}, "b", [1]], ["a", "b", [1]]),
    ],
)
def test_forms_of_a_prompt(prompt: Any, given: list[Any]):
    runtime = FakeRuntime()
    reply = complete(runtime, prompt=prompt).json()
    assert [submit.prompt for submit in runtime.submits] == given
    assert isinstance(reply, list) == (len(given) > 1)


@pytest.mark.parametrize(
    "wrong", [{"n_probs": -1}, {"n_probs": 101}, {"n": 0}, {"n_cmpl": 0}, {"n": 9999}, {"n_cmpl": 9999}]
)
def test_value_out_of_range_is_named_as_the_client_named_it(wrong: dict[str, int]):
    (name,) = wrong
    gap = {"input_prefix": "a", "input_suffix": "b"}
    for response in (complete(FakeRuntime(), **wrong), post(FakeRuntime(), "/infill", **gap, **wrong)):
        error = response.json()["error"]
        assert (response.status_code, error["param"], f"`{name}`" in error["message"]) == (400, name, True)


def test_numbers_of_answers_must_agree():
    assert complete(FakeRuntime(), n=2, n_cmpl=2).status_code == 200
    assert complete(FakeRuntime(), n=2, n_cmpl=3).json()["error"]["param"] == "n"


@pytest.mark.parametrize(
    "prompt",
    [None, [], [1, [2]], {}, 5, [1, {"prompt_string": "a"}], {"prompt_string": "a", "multimodal_data": ["aGk="]}],
)
def test_malformed_prompts_are_refused(prompt: Any):
    response = complete(FakeRuntime(), prompt=prompt)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")


def test_probabilities():
    step = {"text": "é", "logprobs": [position("é", -0.5, logprob("é", -0.5, 9))], "finish_reason": "length"}
    reply = complete(FakeRuntime(lambda submit: [step]), n_probs=1).json()
    top = {"id": 9, "token": "é", "bytes": [0xC3, 0xA9], "logprob": -0.5}
    assert reply["completion_probabilities"] == [{**top, "id": 1, "top_logprobs": [top]}]


def test_probabilities_of_what_a_token_was_drawn_from():
    step = {"text": "é", "logprobs": [position("é", 0.0, logprob("é", -inf, 9))], "finish_reason": "length"}
    reply = complete(FakeRuntime(lambda submit: [step]), n_probs=1, post_sampling_probs=True).json()
    top = {"id": 9, "token": "é", "bytes": [0xC3, 0xA9], "prob": 0.0}
    assert reply["completion_probabilities"] == [{**top, "id": 1, "prob": 1.0, "top_probs": [top]}]


def test_probabilities_of_a_stream_are_all_there_also_without_a_text():
    steps = [
        {"text": "", "logprobs": [position(b"\xc3", -0.5)]},
        {"text": "é", "logprobs": [position(b"\xa9", -0.25)]},
        "",
        {"text": "", "logprobs": [position("s", -1.0)]},
        {"text": "", "logprobs": [position("t", -2.0)], "finish_reason": "length"},
    ]
    whole = complete(FakeRuntime(lambda submit: steps), n_probs=1).json()
    parts = events(complete(FakeRuntime(lambda submit: steps), n_probs=1, stream=True))
    streamed = [probability for part in parts for probability in part.get("completion_probabilities", [])]
    assert streamed == whole["completion_probabilities"]
    assert len(streamed) == len(parts) == 4, "what has no news is not sent"


def test_error_in_the_middle_of_a_stream_is_its_last_event():
    parts = events(complete(FakeRuntime(lambda submit: ["a", BackendError("boom")]), stream=True))
    assert parts[-1]["error"]["message"] == "boom"


def test_response_fields_are_all_that_a_reply_has():
    names = ["content", "timings/prompt_n", "timings/nothing", "content/x", "nothing", "truncated", "timings"]
    reply = complete(FakeRuntime(), response_fields=names).json()
    assert list(reply) == ["content", "timings/prompt_n", "truncated", "timings"]
    assert (reply["content"], reply["truncated"]) == ("Hello!", False)
    assert reply["timings/prompt_n"] == reply["timings"]["prompt_n"]
    assert complete(FakeRuntime(), response_fields=[""]).json() == {}
    assert complete(FakeRuntime(), response_fields=[]).json().keys() == complete(FakeRuntime()).json().keys()
    several = complete(FakeRuntime(), response_fields=["index"], n=2).json()
    assert several == [{"index": 0}, {"index": 1}]


def test_the_settings_of_a_reply_are_the_requests_and_the_models():
    names = ["generation_settings/n_predict", "generation_settings/temperature"]
    given = complete(FakeRuntime(), n_predict=3, temperature=0.5, n_probs=2).json()["generation_settings"]
    assert (given["n_predict"], given["max_tokens"], given["temperature"], given["n_probs"]) == (3, 3, 0.5, 2)
    usual = complete(FakeRuntime()).json()["generation_settings"]
    assert usual["n_ctx"] >= usual["n_predict"] > 3
    assert given.keys() == usual.keys()
    assert complete(FakeRuntime(), n_predict=3, temperature=0, response_fields=names).json() == dict(
        zip(names, (3, 0), strict=True)
    )


def test_a_line_break_in_any_part_of_an_answer_is_reported():
    two_lines = FakeRuntime(lambda submit: ["a\n", "b"])
    assert complete(two_lines).json()["has_new_line"] is True
    assert events(complete(two_lines, stream=True))[-1]["has_new_line"] is True
    assert complete(FakeRuntime()).json()["has_new_line"] is False


def test_response_fields_leave_the_parts_of_a_stream_that_are_not_its_last_as_they_are():
    *parts, last = events(complete(FakeRuntime(), response_fields=["stop_type"], stream=True))
    assert [part["content"] for part in parts] == ["Hel", "lo"]
    assert last == {"stop_type": "eos"}


def test_infill():
    runtime = FakeRuntime()
    tokens = CARD.fill_tokens
    assert tokens is not None
    assert post(runtime, "/infill", input_prefix="a", input_suffix="b", prompt="c").status_code == 200
    assert runtime.submits[0].prompt == [tokens.prefix, "a", tokens.suffix, "b", tokens.middle, "c"]
    assert runtime.submits[0].parse_special is False
    for missing in ("input_prefix", "input_suffix"):
        body = {"input_prefix": "a", "input_suffix": "b"} | {missing: None}
        assert post(FakeRuntime(), "/infill", **body).json()["error"]["param"] == missing


def test_model_that_cannot_fill_in_says_so():
    class NoFill(FakeRuntime):
        @property
        def card(self) -> ModelCard:
            return msgspec.structs.replace(CARD, fill_tokens=None)

    response = post(NoFill(), "/infill", input_prefix="a", input_suffix="b")
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "unsupported_parameter"
    assert "vocabulary has no tokens" in error["message"]


def test_tokenize():
    runtime = FakeRuntime()
    reply = {"tokens": [*"hé".encode()], "count": 3, "max_model_len": runtime.card.context_size}
    assert post(runtime, "/tokenize", content="hé").json() == reply
    pieces = post(runtime, "/tokenize", content=["h", 105, "é"], with_pieces=True, add_special=True).json()["tokens"]
    assert [token["id"] for token in pieces] == [256, 104, 105, *"é".encode()]
    assert [token["piece"] for token in pieces] == ["<s>", "h", "i", [0xC3], [0xA9]]
    assert post(runtime, "/tokenize").json()["tokens"] == []
    assert post(runtime, "/tokenize", content=[1] * 2000).json()["error"]["param"] == "content"


def test_detokenize():
    assert post(FakeRuntime(), "/detokenize", tokens=[104, 105]).json() == {"content": "hi", "prompt": "hi"}
    assert post(FakeRuntime(), "/detokenize").json()["error"]["param"] == "tokens"


def test_a_client_of_vllm_tokenizes_with_the_server():
    class WithTemplate(FakeRuntime):
        @property
        def card(self) -> ModelCard:
            return msgspec.structs.replace(CARD, bos_token="<s>", eos_token="</s>", chat_template="{{ messages }}")

    runtime = FakeRuntime()
    assert post(runtime, "/tokenize", prompt="hi", add_special_tokens=False).json()["tokens"] == [104, 105]
    assert post(runtime, "/tokenize", prompt="hi").json()["tokens"] == [256, 104, 105]
    assert post(runtime, "/tokenize", prompt="hi", content="hi").json()["error"]["param"] == "prompt"
    messages = [{"role": "user", "content": "hi"}]
    assert "/apply-template" in post(runtime, "/tokenize", messages=messages).json()["error"]["message"]
    assert post(runtime, "/detokenize", tokens=[104, 105]).json()["prompt"] == "hi"
    info = ask(make_app(runtime), "GET", "/tokenizer_info").json()
    assert info == {"bos_token": None, "eos_token": None, "chat_template": None}
    info = ask(make_app(WithTemplate()), "GET", "/tokenizer_info").json()
    assert info == {"bos_token": "<s>", "eos_token": "</s>", "chat_template": "{{ messages }}"}


def test_apply_template():
    reply = post(FakeRuntime(), "/apply-template", messages=[{"role": "user", "content": "hi"}])
    assert reply.json() == {"prompt": "<user>hi"}


def test_props_tell_the_version_of_the_program_that_computes(monkeypatch: pytest.MonkeyPatch):
    card = msgspec.structs.replace(FakeRuntime().card, backend="llama-server", backend_version="b7-abc")
    assert ask(make_app(FakeRuntime()), "GET", "/props").json()["build_info"].endswith("-scripted")
    monkeypatch.setattr(FakeRuntime, "card", card)
    assert ask(make_app(FakeRuntime()), "GET", "/props").json()["build_info"].endswith("-llama-server-b7-abc")


def test_props():
    reply = ask(make_app(FakeRuntime()), "GET", "/props").json()
    assert reply["default_generation_settings"]["n_ctx"] == 2048
    assert (reply["total_slots"], reply["model_path"]) == (4, CARD.path)


RUNNING = [
    SlotState(slot=0, num_tokens=9, request_id="r", num_prompt=7, num_completion=3),
    SlotState(slot=1, num_tokens=4),
]


def test_slots():
    runtime = FakeRuntime()
    runtime.slot_states = RUNNING
    reply = ask(make_app(runtime), "GET", "/slots").json()
    assert reply[0] == {
        "id": 0,
        "n_ctx": 2048,
        "is_processing": True,
        "n_tokens": 9,
        "request_id": "r",
        "n_prompt_tokens": 7,
        "n_decoded": 3,
    }
    assert (reply[1]["is_processing"], reply[1]["n_tokens"]) == (False, 4)


@pytest.mark.parametrize(("num_running", "status"), [(3, 200), (4, 503)])
def test_probe_for_a_free_slot(num_running: int, status: int):
    runtime = FakeRuntime()
    runtime.slot_states = [SlotState(slot=i, num_tokens=1, request_id=f"r{i}") for i in range(num_running)]
    response = ask(make_app(runtime), "GET", "/slots?fail_on_no_slot=1")
    assert response.status_code == status


def test_slots_of_several_engines_say_whose_they_are():
    runtime = FakeRuntime()
    runtime.slot_states = [SlotState(slot=9, num_tokens=4, replica=1)]
    (slot,) = ask(make_app(runtime), "GET", "/slots").json()
    assert (slot["id"], slot["replica"]) == (9, 1)


def test_erase_a_slot():
    runtime = FakeRuntime()
    assert ask(make_app(runtime), "POST", "/slots/3?action=erase").json() == {"id_slot": 3, "n_erased": 7}
    assert runtime.erased == [3]


def test_save_and_restore_a_slot():
    runtime = FakeRuntime()
    saved, restored = (
        ask(make_app(runtime), "POST", f"/slots/3?action={action}", json={"filename": "a.bin"}).json()
        for action in ("save", "restore")
    )
    about = {"id_slot": 3, "filename": "a.bin"}
    assert saved == {**about, "n_saved": 9, "n_written": 1000, "timings": {"save_ms": 250}}
    assert restored == {**about, "n_restored": 9, "n_read": 1000, "timings": {"restore_ms": 250}}
    assert runtime.filed == [("save", 3, "a.bin"), ("restore", 3, "a.bin")]


@pytest.mark.parametrize(
    ("action", "param"), [("save", "filename"), ("restore", "filename"), ("", "action"), ("x", "action")]
)
def test_actions_that_say_too_little_are_refused(action: str, param: str):
    runtime = FakeRuntime()
    response = ask(make_app(runtime), "POST", f"/slots/3?action={action}", json={})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_input")
    assert response.json()["error"]["param"] == param
    assert (runtime.erased, runtime.filed) == ([], [])


def test_cache():
    runtime = FakeRuntime()
    beat = EngineStats(num_steps=1, num_running=1, num_waiting=0, kv_used=5, kv_retained=6, kv_capacity=70, stalled_s=0)
    runtime.state = Health(is_ready=True, state="ready", heartbeat=beat)
    app = make_app(runtime)
    (entry,) = ask(app, "GET", "/cache").json()["models"]
    assert entry.pop("tiers")["ram_bytes"] == 0
    assert entry == {"id": "tiny", "kv_capacity": 70, "kv_used": 5, "kv_retained": 6}
    assert ask(app, "DELETE", "/cache").json() == {"n_erased": 7}
    assert runtime.erased == [None]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/slots"), ("GET", "/props"), ("POST", "/slots/0"), ("DELETE", "/cache")],
)
def test_model_is_chosen_by_name(method: str, path: str):
    app = make_app(FakeRuntime(), strict=True)
    action = "&action=erase"
    assert ask(app, method, f"{path}?model=tiny{action}").status_code == 200
    assert ask(app, method, f"{path}?model=other{action}").status_code == 404


@pytest.mark.parametrize("slot", ["x", "-1", "1.5", "9" * 30])
def test_slot_that_is_no_number_is_refused(slot: str):
    response = ask(make_app(FakeRuntime()), "POST", f"/slots/{slot}?action=erase")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "slot")
