"""Where an answer ends for its lines' sake."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import count
from typing import Any

import pytest

from stoker.engine.protocol import Accepted, Output, Usage
from stoker.server.request.lines import LineBounds, bounded
from tests.unit.server.fake_runtime import FakeRuntime, ask, events, make_app


def ended(texts: Sequence[str], bounds: LineBounds, times: Iterator[float] | None = None) -> tuple[str, str | None]:
    """The text of an answer and its finish reason; it would be `stop`."""
    is_closed = False

    async def stream() -> AsyncGenerator[Accepted | Output, None]:
        nonlocal is_closed
        try:
            yield Accepted("r", 1)
            for number, text in enumerate(texts, 1):
                reason = "stop" if number == len(texts) else None
                yield Output("r", text, [number], Usage(1, number, 0), finish_reason=reason)
        finally:
            is_closed = True

    async def read() -> list[Accepted | Output]:
        clock = times or iter(count())
        items = [item async for item in bounded(stream(), bounds, clock=lambda: next(clock))]
        assert is_closed
        return items

    first, *outputs = asyncio.run(read())
    assert isinstance(first, Accepted)
    assert all(isinstance(output, Output) for output in outputs)
    given: list[Any] = outputs
    assert [output.finish_reason for output in given[:-1]] == [None] * (len(given) - 1)
    return "".join(output.text for output in given), given[-1].finish_reason


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x\n    y\n", "x\n    y\n"),
        ("x\n\t\t\t\ty\n     z", "x\n\t\t\t\ty\n     z"),
        ("x\n    y\n}\n", "x\n    y\n"),
        ("x\n  y", "x\n  "),
        ("x\n\n    y", "x\n"),
        ("x\n    \n    y", "x\n    \n    y"),
        ("first line", "first line"),
        ("\nx", "\n"),
        ("", ""),
    ],
)
def test_a_line_that_is_indented_too_little_is_not_written(text: str, kept: str):
    bounds = LineBounds(min_indent=4)
    reason = "stop" if kept == text else "length"
    assert ended([text], bounds) == (kept, reason)
    assert ended([*text, ""], bounds) == (kept, reason)


def test_markers_of_the_text_that_is_not_written_are_dropped():
    async def stream() -> AsyncGenerator[Output, None]:
        yield Output("r", "a\nb c", [1, 2, 3], Usage(1, 3, 0), marks=[(0, "<think>"), (5, "<tool_call>")])

    async def read() -> list[Any]:
        return [item async for item in bounded(stream(), LineBounds(min_indent=2))]

    (output,) = asyncio.run(read())
    assert (output.text, output.marks, output.finish_reason) == ("a\n", [(0, "<think>")], "length")


def test_the_line_in_which_time_is_up_is_the_last_one():
    texts = ["a", "\n", "b", "c", "\nd", "e\n", "f"]
    # The clock is read for the first output and for every end of a line: 0, 1, 2, 3 seconds.
    assert ended(texts, LineBounds(max_s=1.5)) == ("a\nbc\nd", "length")
    assert ended(texts, LineBounds(max_s=2)) == ("a\nbc\nde\n", "length")
    assert ended(texts, LineBounds(max_s=3)) == ("a\nbc\nde\nf", "stop")


def test_an_answer_that_ends_by_itself_keeps_its_reason():
    assert ended(["a", "b\n"], LineBounds(max_s=0.5)) == ("ab\n", "stop")


@pytest.mark.parametrize("path", ["/completion", "/infill"])
def test_a_bound_is_the_reply_s_limit_and_ends_the_request(path: str):
    runtime = FakeRuntime(lambda submit: ["if x:\n    y", "\nz", "never"])
    body = {"prompt": "", "input_prefix": "a", "input_suffix": "b", "n_indent": 4}
    reply = ask(make_app(runtime), "POST", path, json=body).json()
    assert (reply["content"], reply["stop_type"], reply["tokens_predicted"]) == ("if x:\n    y\n", "limit", 2)
    assert runtime.held == set()
    *_, last = events(ask(make_app(runtime), "POST", path, json={**body, "stream": True}))
    assert (last["content"], last["stop"], last["stop_type"]) == ("\n", True, "limit")


def test_each_of_several_answers_has_its_own_end():
    runtime = FakeRuntime(lambda submit: ["a\n", "b" if submit.request_id.endswith("0") else "    c"])
    replies = ask(make_app(runtime), "POST", "/completion", json={"prompt": "", "n_indent": 2, "n": 2}).json()
    assert [(reply["content"], reply["stop_type"]) for reply in replies] == [("a\n", "limit"), ("a\n    c", "eos")]


@pytest.mark.parametrize("asked", [{"n_indent": -1}, {"n_indent": 2.5}, {"t_max_predict_ms": "1"}])
def test_wrong_values_are_named(asked: dict[str, Any]):
    response = ask(make_app(FakeRuntime()), "POST", "/completion", json={"prompt": "", **asked})
    assert response.json()["error"]["param"] == next(iter(asked))


@pytest.mark.parametrize("asked", [{"n_indent": 0}, {"t_max_predict_ms": 0}, {"t_max_predict_ms": -1}])
def test_values_that_ask_for_nothing(asked: dict[str, Any]):
    runtime = FakeRuntime(lambda submit: ["a\nb", "\nc"])
    reply = ask(make_app(runtime), "POST", "/completion", json={"prompt": "", **asked}).json()
    assert (reply["content"], reply["stop_type"]) == ("a\nb\nc", "eos")
