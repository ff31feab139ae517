import pytest

from stoker.engine.protocol import PositionLogprobs, Submit
from tests.unit.server.fake_runtime import FakeRuntime, Step, complete, events, logprob, position


def test_stream_ends_with_an_empty_chunk_that_has_the_reason():
    *chunks, done = events(complete(FakeRuntime(), stream=True))
    assert done == "[DONE]"
    assert [(c["choices"][0]["text"], c["choices"][0]["finish_reason"]) for c in chunks] == [
        ("Hel", None),
        ("lo", None),
        ("!", None),
        ("", "stop"),
    ]
    assert {c["object"] for c in chunks} == {"text_completion"}


def test_whole_reply():
    reply = complete(FakeRuntime()).json()
    assert reply["object"] == "text_completion"
    assert reply["id"].startswith("cmpl-")
    assert reply["choices"] == [{"text": "Hello!", "index": 0, "logprobs": None, "finish_reason": "stop"}]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("one", ["one"]),
        ("", [""]),
        (["one", "two"], ["one", "two"]),
        ([1, 2, 3], [[1, 2, 3]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_every_form_of_prompt(prompt: object, prompts: list[object]):
    runtime = FakeRuntime()
    reply = complete(runtime, prompt=prompt).json()
    assert [submit.prompt for submit in runtime.submits] == prompts
    assert [choice["index"] for choice in reply["choices"]] == list(range(len(prompts)))


@pytest.mark.parametrize("prompt", [[], ["a", 1], [1, [2]], [True], 7, {"text": "x"}, [[1.5]], [["a"]], None])
def test_malformed_prompt_is_refused(prompt: object):
    response = complete(FakeRuntime(), prompt=prompt)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("prompt")


def test_choices_are_numbered_prompt_by_prompt():
    runtime = FakeRuntime(lambda submit: [f"{submit.prompt}{submit.sampling.seed}"])
    reply = complete(runtime, prompt=["a", "bb"], n=2, seed=5).json()
    assert [(c["index"], c["text"]) for c in reply["choices"]] == [(0, "a5"), (1, "a6"), (2, "bb5"), (3, "bb6")]
    assert reply["usage"]["prompt_tokens"] == 3, "each prompt counts once"
    streamed = events(complete(runtime, prompt=["a", "bb"], n=2, seed=5, stream=True))[:-1]
    texts = [""] * 4
    for chunk in streamed:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == ["a5", "a6", "bb5", "bb6"]


def test_echo_puts_the_prompt_before_each_choice():
    runtime = FakeRuntime()
    choices = complete(runtime, prompt=["a", "b"], n=2, echo=True).json()["choices"]
    assert [choice["text"] for choice in choices] == ["aHello!", "aHello!", "bHello!", "bHello!"]
    assert all(choice["logprobs"] is None for choice in choices)
    first = events(complete(runtime, echo=True, stream=True))[0]
    assert first["choices"][0]["text"] == "hiHel"
    assert complete(runtime, prompt=[7, 8], echo=True).json()["choices"][0]["text"] == "<7><8>Hello!"


def test_echo_with_logprobs_has_those_of_the_prompt():
    runtime = FakeRuntime(lambda submit: [{"text": "x", "logprobs": [position("x", -0.5, logprob("x", -0.5))]}, ""])
    whole = complete(runtime, prompt="héy", echo=True, logprobs=1).json()["choices"][0]
    assert whole["text"] == "héyx"
    assert whole["logprobs"]["tokens"] == ["h", "é", "y", "x"]
    assert whole["logprobs"]["token_logprobs"] == [None, -1.0, -2.0, -0.5]
    assert whole["logprobs"]["top_logprobs"] == [None, {}, {}, {"x": -0.5}]
    assert whole["logprobs"]["text_offset"] == [0, 1, 2, 3]
    chunks = events(complete(runtime, prompt="héy", echo=True, logprobs=1, stream=True))[:-1]
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    for name, values in whole["logprobs"].items():
        assert [value for part in parts if part for value in part[name]] == values


def test_scoring_a_prompt_needs_no_completion():
    runtime = FakeRuntime(lambda submit: [{"text": "", "token_ids": [], "logprobs": [], "finish_reason": "length"}])
    choice = complete(runtime, prompt="abc", echo=True, logprobs=0, max_tokens=0).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -2.0]


def test_best_of_gives_the_likeliest_and_counts_them_all():
    def script(submit: Submit) -> list[Step]:
        is_second = submit.request_id.endswith("-1")
        return [{"text": submit.request_id[-1], "logprobs": [position("x", -1.0 if is_second else -2.0)]}]

    reply = complete(FakeRuntime(script), best_of=3, n=1).json()
    assert [(c["index"], c["text"], c["logprobs"]) for c in reply["choices"]] == [(0, "1", None)]
    assert reply["usage"]["completion_tokens"] == 3
    assert reply["usage"]["prompt_tokens"] == 2


def test_logprobs_with_offsets_over_split_characters():
    runtime = FakeRuntime(
        lambda submit: [
            {"text": "a", "logprobs": [position("a", -1.0, logprob("a", -1.0), logprob("b", -2.0))]},
            {"text": "", "logprobs": [position(b"\xc3", -0.5)]},
            {"text": "é", "logprobs": [position(b"\xa9", -0.25)]},
            {"text": "z", "logprobs": [position("z", -0.125)], "finish_reason": "length"},
        ]
    )
    whole = complete(runtime, logprobs=1).json()["choices"][0]["logprobs"]
    assert whole["text_offset"] == [0, 1, 1, 2]
    assert whole["token_logprobs"] == [-1.0, -0.5, -0.25, -0.125]
    assert whole["top_logprobs"][0] == {"a": -1.0, "b": -2.0}
    assert len(whole["tokens"]) == 4
    assert runtime.submits[0].sampling.logprobs == 1

    parts = [c["choices"][0]["logprobs"] for c in events(complete(runtime, logprobs=1, stream=True))[:-1]]
    assert [offset for part in parts if part for offset in part["text_offset"]] == whole["text_offset"]


def test_offsets_pass_over_what_is_not_in_the_text():
    control = PositionLogprobs(logprob("<|im_start|>", -1.0), (), is_text=False)
    runtime = FakeRuntime(
        lambda submit: [
            {"text": "", "logprobs": [control]},
            {"text": "", "logprobs": [position(b"\xc3", -0.5)]},
            {"text": "", "logprobs": [control]},
            {"text": "é", "logprobs": [position(b"\xa9", -0.5)]},
            {"text": "x", "logprobs": [position("x", -0.5)], "finish_reason": "length"},
        ]
    )
    choice = complete(runtime, logprobs=0).json()["choices"][0]
    assert choice["text"] == "éx"
    assert choice["logprobs"]["tokens"][0] == "<|im_start|>"
    assert choice["logprobs"]["text_offset"] == [0, 0, 0, 0, 1]


def test_top_logprobs_of_equal_texts_keep_the_likeliest():
    same = position("x", -1.0, logprob(b"\xff", -0.5), logprob(b"\xfe", -3.0))
    runtime = FakeRuntime(lambda submit: [{"text": "x", "logprobs": [same], "finish_reason": "length"}])
    assert complete(runtime, logprobs=2).json()["choices"][0]["logprobs"]["top_logprobs"] == [{"\ufffd": -0.5}]


def test_too_many_choices_are_refused():
    response = complete(FakeRuntime(), prompt=["a"] * 33, n=2)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "n"
