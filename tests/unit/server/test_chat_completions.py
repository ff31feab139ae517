import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.protocol import Timing
from stoker.engine.traces import Trace, TraceEnd
from stoker.errors import EngineCrashed
from stoker.text.template_budget import charge, limited
from tests.unit.server.fake_runtime import FakeRuntime, ask, chat, events, logprob, make_app, position


def test_stream_has_role_first_finish_last_and_done():
    *chunks, done = events(chat(FakeRuntime(), stream=True))

    assert done == "[DONE]"
    assert [c["choices"][0]["delta"] for c in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Hel"},
        {"content": "lo"},
        {"content": "!"},
        {},
    ]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, None, None, "stop"]
    assert all("logprobs" in c["choices"][0] and c["choices"][0]["index"] == 0 for c in chunks)
    assert all(c["object"] == "chat.completion.chunk" for c in chunks)


def test_head_is_constant_over_a_stream_and_ids_are_unique():
    runtime = FakeRuntime()
    first, second = events(chat(runtime, stream=True)), events(chat(runtime, stream=True))
    heads = {tuple(c[k] for k in ("id", "created", "model", "system_fingerprint")) for c in first[:-1]}
    assert len(heads) == 1
    assert first[0]["id"] != second[0]["id"]
    assert first[0]["id"].startswith("chatcmpl-")
    assert first[0]["model"] == "tiny"


def test_stream_headers_forbid_buffering():
    response = chat(FakeRuntime(), stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"


def test_usage_chunk_only_if_asked_for():
    plain = events(chat(FakeRuntime(), stream=True))
    assert not any("usage" in c for c in plain[:-1])

    *chunks, usage, done = events(chat(FakeRuntime(), stream=True, stream_options={"include_usage": True}))
    assert done == "[DONE]"
    assert all(c["usage"] is None for c in chunks)
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 8,
        "completion_tokens": 3,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_running_usage_counts_up():
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _done = events(chat(FakeRuntime(), stream=True, stream_options=options))
    counts = [c["usage"]["completion_tokens"] for c in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 3


def test_timings_come_on_the_last_chunk():
    *chunks, last, _done = events(chat(FakeRuntime(), stream=True))
    assert not any("timings" in c for c in chunks)
    assert (last["timings"]["cache_n"], last["timings"]["prompt_n"], last["timings"]["predicted_n"]) == (3, 5, 3)
    with_usage = events(chat(FakeRuntime(), stream=True, stream_options={"include_usage": True}))
    assert ["timings" in c for c in with_usage[:-1]] == [False] * 5 + [True]


def test_timings_are_those_of_the_engine_not_of_when_somebody_had_time_to_look():
    """Of several choices those of the slowest: they are computed side by side."""
    ends = {"0": Timing(0.5, 0.25), "1": Timing(0.125, 2.0)}
    runtime = FakeRuntime(lambda submit: ["a", {"text": "b", "timing": ends[submit.request_id[-1]]}])
    timings = chat(runtime).json()["timings"]
    assert (timings["prompt_ms"], timings["predicted_ms"]) == (500, 250)
    assert (timings["predicted_n"], timings["predicted_per_second"]) == (2, 8)
    timings = chat(runtime, n=2).json()["timings"]
    assert (timings["prompt_ms"], timings["predicted_ms"]) == (500, 2000)
    body = {"model": "tiny", "prompt": "hi", "stream": False}
    reply = ask(make_app(runtime), "POST", "/api/generate", json=body).json()
    assert (reply["prompt_eval_duration"], reply["eval_duration"]) == (500_000_000, 250_000_000)


def test_a_traced_stream_says_where_its_tokens_came_from():
    """Also those that add no text."""
    ends = Trace([8, 9], [True, False], TraceEnd(3, 0.25, (20, 32, 64), 1))
    played = [{"text": "a", "trace": Trace([7], [False])}, {"text": "", "trace": Trace([7], [True])}]
    runtime = FakeRuntime(lambda submit: [*played, {"text": "b", "trace": ends}])
    *chunks, _done = events(chat(runtime, stream=True, stoker={"trace": True}))
    traces = [chunk["stoker"] for chunk in chunks if "stoker" in chunk]
    assert [(trace["steps"], trace["drafted"]) for trace in traces] == [
        ([7], [False]),
        ([7], [True]),
        ([8, 9], [True, False]),
    ]
    assert all(trace["ids"] for trace in traces)
    assert traces[-1]["slot"] == 3
    assert traces[-1]["queue_ms"] == 250
    assert traces[-1]["cached"] == {"pool": 20, "memory": 32, "disk": 64}
    assert traces[-1]["preempted"] == 1
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "ab"


def test_empty_answer_is_valid():
    runtime = FakeRuntime(lambda submit: [""])
    *chunks, _done = events(chat(runtime, stream=True))
    assert [c["choices"][0]["delta"] for c in chunks] == [{"role": "assistant", "content": ""}, {}]
    choice = chat(runtime).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")


def test_step_without_text_sends_nothing_but_the_role():
    *chunks, _done = events(chat(FakeRuntime(lambda submit: ["", "é"]), stream=True))
    assert [c["choices"][0]["delta"].get("content") for c in chunks] == ["", "é", None]


def test_whole_reply():
    reply = chat(FakeRuntime()).json()
    assert reply["object"] == "chat.completion"
    assert reply["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello!", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert reply["usage"]["total_tokens"] == 11
    assert reply["timings"]["predicted_n"] == 3


def test_stop_match_is_told_at_the_end():
    runtime = FakeRuntime(lambda submit: ["a", {"text": "", "stop_match": "END"}])
    assert chat(runtime).json()["choices"][0]["stop_reason"] == "END"
    *_, last, _done = events(chat(runtime, stream=True))
    assert last["choices"][0]["stop_reason"] == "END"


@given(st.lists(st.text(max_size=5), min_size=1, max_size=6), st.integers(1, 3))
def test_stream_and_whole_reply_are_the_same(texts: list[str], n: int):
    runtime = FakeRuntime(lambda submit: texts)
    whole = chat(runtime, n=n).json()["choices"]
    streamed = [""] * n
    finished: list[int] = []
    for chunk in events(chat(runtime, n=n, stream=True))[:-1]:
        (choice,) = chunk["choices"]
        assert choice["index"] not in finished
        streamed[choice["index"]] += choice["delta"].get("content", "")
        if choice["finish_reason"]:
            finished.append(choice["index"])
    assert sorted(finished) == list(range(n))
    assert streamed == [choice["message"]["content"] for choice in whole] == ["".join(texts)] * n


def test_several_choices_share_the_prompt_and_differ_in_seed():
    runtime = FakeRuntime(lambda submit: [submit.request_id[-1]])
    reply = chat(runtime, n=3, seed=7).json()
    assert [c["message"]["content"] for c in reply["choices"]] == ["0", "1", "2"]
    assert [s.sampling.seed for s in runtime.submits] == [7, 8, 9]
    assert len({s.request_id for s in runtime.submits}) == 3
    assert reply["usage"]["prompt_tokens"] == 8, "one prompt"
    assert reply["usage"]["completion_tokens"] == 3


def test_each_choice_of_a_stream_has_its_own_role_and_finish():
    *chunks, _done = events(chat(FakeRuntime(), n=2, stream=True))
    for index in (0, 1):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert [c["finish_reason"] for c in own] == [None] * 4 + ["stop"]
    assert ["timings" in c for c in chunks].count(True) == 1


def test_logprobs():
    runtime = FakeRuntime(
        lambda submit: [
            {"text": "é", "logprobs": [position("é", -0.5, logprob("é", -0.5), logprob("e", -1.5))]},
            {"text": "", "logprobs": [position("</s>", -0.1)]},
        ]
    )
    whole = chat(runtime, logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]
    (only,) = whole["content"]
    assert only["token"] == "é"
    assert only["bytes"] == list("é".encode())
    assert [t["token"] for t in only["top_logprobs"]] == ["é", "e"]
    assert runtime.submits[0].sampling.logprobs == 2
    chunks = events(chat(runtime, logprobs=True, top_logprobs=2, stream=True))[:-1]
    streamed = [p for c in chunks for p in (c["choices"][0]["logprobs"] or {"content": []})["content"]]
    assert streamed == whole["content"]


def test_failure_in_the_middle_of_a_stream_is_the_last_event():
    runtime = FakeRuntime(lambda submit: ["a", EngineCrashed("the engine died")])
    *chunks, error = events(chat(runtime, stream=True))
    assert [c["choices"][0]["delta"] for c in chunks] == [{"role": "assistant", "content": ""}, {"content": "a"}]
    assert error["error"]["code"] == "engine_crashed"
    assert runtime.held == set()


def test_failure_of_one_choice_ends_the_others():
    def script(submit):
        return ["a", EngineCrashed("died")] if submit.request_id.endswith("-1") else ["a"] * 1000

    runtime = FakeRuntime(script)
    assert events(chat(runtime, n=3, stream=True))[-1]["error"]["code"] == "engine_crashed"
    assert chat(runtime, n=3).status_code == 503
    assert runtime.held == set()


def test_conversation_reaches_the_template():
    runtime = FakeRuntime()
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": [{"type": "text", "text": "U"}]}]
    chat(runtime, messages=messages, chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low")
    (seen, variables) = runtime.rendered[0]
    assert [(m.role, m.text) for m in seen] == [("system", "S"), ("user", "U")]
    assert variables == {
        "add_generation_prompt": True,
        "continue_final_message": False,
        "enable_thinking": False,
        "reasoning_effort": "low",
    }
    assert runtime.submits[0].prompt == "<system>S<user>U"


@pytest.mark.parametrize("text", ["", '"', "\\", "\n\r\u2028", "data: x\n\n", "🚀", "\x00"])
def test_any_text_survives_the_framing(text: str):
    chunks = events(chat(FakeRuntime(lambda submit: ["<", text, ">"]), stream=True))[:-1]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == f"<{text}>"


def test_reply_is_json_in_utf8():
    response = chat(FakeRuntime(lambda submit: ["é"]))
    assert response.headers["content-type"] == "application/json"
    assert msgspec.json.decode(response.content)["choices"][0]["message"]["content"] == "é"


def test_probabilities_of_what_a_token_was_drawn_from_have_llama_servers_names_too():
    step = {"text": "é", "logprobs": [position("é", 0.0, logprob("é", 0.0, 9))], "finish_reason": "length"}
    runtime = FakeRuntime(lambda submit: [step])
    reply = chat(runtime, logprobs=True, top_logprobs=1, post_sampling_probs=True).json()
    top = {"token": "é", "logprob": 0.0, "bytes": [0xC3, 0xA9], "prob": 1.0}
    assert reply["choices"][0]["logprobs"]["content"] == [{**top, "top_logprobs": [top], "top_probs": [top]}]


class Rendering(FakeRuntime):
    """Notes which thread renders, and pays for it as a template does."""

    def __init__(self, work: int) -> None:
        super().__init__()
        self.work = work
        self.threads: list[threading.Thread] = []

    def render_chat(self, *args: Any, **kwargs: Any) -> str:
        self.threads.append(threading.current_thread())
        with limited():
            charge(self.work)
        return super().render_chat(*args, **kwargs)


def test_only_short_requests_with_a_quick_template_are_rendered_beside_the_streams():
    quick, slow, large = Rendering(10), Rendering(100_000), Rendering(10)
    for runtime, content in ((quick, "hi"), (slow, "hi"), (large, "hi" * 3000)):
        assert chat(runtime, messages=[{"role": "user", "content": content}]).status_code == 200
    here = threading.current_thread()
    assert [thread is here for thread in quick.threads] == [True]
    assert [thread is here for thread in slow.threads] == [True, False]
    assert [thread is here for thread in large.threads] == [False]
