"""One turn at a time, without a thread: what is published, and what a fault of one request does to its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stoker import _native
from stoker.backends.scripted import EOS, NextToken, ScriptedBackend, ScriptedTokenizer, reply_with, scripted_info
from stoker.core.batch import Batch
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Event, Failed, Output, Submit
from stoker.errors import BackendError, ContextLengthExceeded, InvalidInput
from tests.harness import loaded

GREEDY = SamplingParams(temperature=0)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make_engine(
    next_token: NextToken | None = None,
    *,
    before_forward: Callable[[Batch], None] | None = None,
    clock: Callable[[], float] | None = None,
    defaults: SamplingParams = GREEDY,
    max_running: int = 4,
    backend: ScriptedBackend | None = None,
) -> Engine:
    backend = backend or ScriptedBackend(scripted_info(), next_token=next_token, before_forward=before_forward)
    config = SchedulerConfig(max_running=max_running, max_waiting=8)
    kernels = _native.RowSampler()
    return Engine(loaded(backend, defaults=defaults), config, clock=clock or Clock(), row_kernels=kernels)


def add(engine: Engine, request_id: str, prompt: str | list[int] = "Q:", timeout_s: float | None = None, **params: Any):
    submit = Submit(request_id, prompt, SamplingParams(**params), timeout_s=timeout_s)
    engine.add(engine.admit(submit))


def run(engine: Engine) -> dict[str, list[Event]]:
    """All events by request, until nobody is left."""
    events: dict[str, list[Event]] = {}
    while engine.has_work:
        step = engine.step()
        engine.check_integrity()
        ids = [event.request_id for event in step if isinstance(event, (Output, Failed))]
        assert len(ids) == len(set(ids)) == len(step), "one event per request and step"
        for request_id, event in zip(ids, step, strict=True):
            events.setdefault(request_id, []).append(event)
    return events


def outputs(events: Sequence[Event]) -> list[Output]:
    assert all(isinstance(event, Output) for event in events), events
    return [event for event in events if isinstance(event, Output)]


def text(events: Sequence[Event]) -> str:
    return "".join(output.text for output in outputs(events))


def last(events: Sequence[Event]) -> Output:
    assert [output.finish_reason is not None for output in outputs(events)] == [False] * (len(events) - 1) + [True]
    return outputs(events)[-1]


def test_answer_ends_at_the_end_of_generation_with_exact_usage():
    engine = make_engine(reply_with("Hällo!"))
    add(engine, "a")
    events = run(engine)["a"]
    assert text(events) == "Hällo!"
    assert last(events).finish_reason == "stop"
    assert last(events).stop_match is None
    token_ids = [token_id for output in outputs(events) for token_id in output.token_ids]
    assert token_ids == [*"Hällo!".encode(), EOS]
    assert last(events).usage.prompt_tokens == len("Q:") + 1  # BOS
    assert last(events).usage.completion_tokens == len(token_ids)


def test_usage_counts_the_cached_tokens_of_a_repeated_prompt():
    engine = make_engine(reply_with("yes"))
    add(engine, "first", "a rather long question?")
    add_usage = last(run(engine)["first"]).usage
    add(engine, "second", "a rather long question?")
    usage = last(run(engine)["second"]).usage
    assert add_usage.cached_tokens == 0
    assert usage.cached_tokens == usage.prompt_tokens - 1


def test_half_a_character_is_held_until_it_is_whole_and_flushed_at_the_end():
    engine = make_engine(reply_with("€"))
    add(engine, "a", max_tokens=2)
    events = run(engine)["a"]
    assert [output.text for output in outputs(events)] == ["", "\ufffd"]
    assert last(events).finish_reason == "length"


@pytest.mark.parametrize("stop", ["STOP", ["nothing", "TOP"], "P"])
def test_stop_string_over_token_borders_is_never_part_of_the_answer(stop: str | list[str]):
    engine = make_engine(reply_with("one two STOP three"))
    add(engine, "a", stop=stop)
    events = run(engine)["a"]
    matched = stop if isinstance(stop, str) else "TOP"
    assert text(events) == "one two STOP three".partition(matched)[0]
    assert (last(events).finish_reason, last(events).stop_match) == ("stop", matched)
    assert last(events).usage.completion_tokens == "one two STOP three".index(matched) + len(matched)


def test_what_only_began_like_a_stop_string_is_flushed_at_the_end():
    engine = make_engine(reply_with("all is well ST"))
    add(engine, "a", stop="STOP")
    assert text(run(engine)["a"]) == "all is well ST"


def test_stop_string_on_the_last_allowed_token_is_a_stop():
    engine = make_engine(reply_with("abcdef"))
    add(engine, "a", stop="c", max_tokens=3)
    end = last(run(engine)["a"])
    assert (end.finish_reason, end.stop_match) == ("stop", "c")


def test_stop_string_does_not_count_before_min_tokens():
    engine = make_engine(reply_with("xaxaxa"))
    add(engine, "a", stop="a", min_tokens=3)
    assert text(run(engine)["a"]) == "xax"


def test_stop_token_is_reported_and_not_part_of_the_text():
    engine = make_engine(reply_with("abcdef"))
    add(engine, "a", stop_token_ids=[ord("c")])
    events = run(engine)["a"]
    assert text(events) == "ab"
    assert last(events).stop_match == ord("c")
    assert outputs(events)[-1].token_ids == [ord("c")]


def test_logprobs_carry_the_bytes_of_their_tokens():
    engine = make_engine(reply_with("hi"))
    add(engine, "a", logprobs=2)
    add(engine, "b")
    events = run(engine)
    positions = [position for output in outputs(events["a"]) for position in output.logprobs or []]
    assert [position.chosen.token for position in positions] == [b"h", b"i", b"</s>"]
    assert all(len(position.top) == 2 and position.top[0] == position.chosen for position in positions)
    assert all(-1 < position.chosen.logprob <= 0 for position in positions)
    assert all(output.logprobs is None for output in outputs(events["b"]))


def test_logprobs_say_which_tokens_are_not_in_the_text():
    engine = make_engine(reply_with("h<|im_start|>ié"))
    add(engine, "a", logprobs=0, stop_token_ids=[0xA9])
    events = run(engine)["a"]
    positions = [position for output in outputs(events) for position in output.logprobs or []]
    assert text(events) == "hi\ufffd"
    assert [(position.chosen.token, position.is_text) for position in positions] == [
        (b"h", True),
        (b"<|im_start|>", False),
        (b"i", True),
        (b"\xc3", True),
        (b"\xa9", False),
    ]


def test_request_overrides_defaults_and_built_in_fills_the_rest():
    engine = make_engine(defaults=SamplingParams(max_tokens=3, temperature=0))
    sampling = engine.admit(Submit("a", "x", SamplingParams(max_tokens=2))).request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k) == (2, 0, 40)


def test_seed_is_drawn_when_not_given_and_zero_is_a_seed():
    engine = make_engine()
    seeds = {engine.admit(Submit("a", "x", SamplingParams())).request.sampling.seed for _ in range(3)}
    assert len(seeds) == 3
    assert engine.admit(Submit("a", "x", SamplingParams(seed=0))).request.sampling.seed == 0


def test_same_seed_same_answer_whatever_the_neighbours():
    params: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_tokens": 20}
    alone, crowded = make_engine(), make_engine()
    add(alone, "a", **params)
    for index in range(3):
        add(crowded, f"other{index}", f"else {index}", temperature=1.0, max_tokens=15)
    add(crowded, "a", **params)
    assert text(run(alone)["a"]) == text(run(crowded)["a"])


@pytest.mark.parametrize(
    ("prompt", "params", "error"),
    [
        ([], {}, InvalidInput),
        ([1, 99999], {}, InvalidInput),
        ("x" * 600, {}, ContextLengthExceeded),
        ("lone \ud800 surrogate", {}, InvalidInput),
        ("x", {"stop_token_ids": [99999]}, InvalidInput),
    ],
)
def test_what_cannot_be_honoured_is_refused_at_the_door(prompt: Any, params: Any, error: type[Exception]):
    engine = make_engine()
    with pytest.raises(error):
        engine.admit(Submit("a", prompt, SamplingParams(**params)))
    assert not engine.has_work


def test_a_text_that_is_too_long_whatever_its_tokens_is_refused_without_encoding_it():
    class Tokenizer(ScriptedTokenizer):
        def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
            raise AssertionError("it is not encoded")

    backend = ScriptedBackend(scripted_info())
    engine = Engine(loaded(backend, Tokenizer(), defaults=GREEDY), SchedulerConfig(max_running=1, max_waiting=1))
    limit = backend.info.max_sequence_tokens
    for prompt in ("x" * 100 * limit, [1, "x" * 100 * limit]):
        with pytest.raises(ContextLengthExceeded, match="has at least"):
            engine.admit(Submit("a", prompt, SamplingParams()))


def test_token_ids_are_taken_as_they_are():
    engine = make_engine()
    assert engine.admit(Submit("a", [1, 2, 3], SamplingParams())).request.prompt == (1, 2, 3)


def test_deadline_ends_running_and_queued_requests_and_nobody_else():
    clock = Clock()
    engine = make_engine(clock=clock, max_running=1)
    add(engine, "running", max_tokens=100, timeout_s=5)
    add(engine, "queued", max_tokens=100, timeout_s=7)
    add(engine, "patient", max_tokens=2)
    engine.step()
    clock.now = 10
    events = engine.step()
    failed = {event.request_id: event for event in events if isinstance(event, Failed)}
    assert failed.keys() == {"running", "queued"}
    assert {event.code for event in failed.values()} == {"timeout"}
    assert failed["running"].fields == {"timeout_s": 5}
    rest = [event for event in events if isinstance(event, Output)] + list(run(engine)["patient"])
    assert last(rest).finish_reason == "length"


def test_a_deadline_of_somebody_who_has_left_wakes_nobody_for_ever():
    clock = Clock()
    engine = make_engine(clock=clock)
    add(engine, "short", max_tokens=1, timeout_s=5)
    assert engine.next_deadline == clock.now + 5
    run(engine)
    assert engine.next_deadline == inf
    add(engine, "short", max_tokens=1, timeout_s=5)
    add(engine, "paused", max_tokens=100, timeout_s=50)
    engine.pause("paused")
    while engine.has_work:
        engine.step()
    clock.now += 10
    assert engine.has_work, "nobody remembers whose the deadline was"
    assert engine.step() == []
    assert not engine.has_work
    assert engine.next_deadline == clock.now + 40
    clock.now += 40
    assert engine.has_work
    (event,) = engine.step()
    assert isinstance(event, Failed)
    assert (event.request_id, event.code) == ("paused", "timeout")


def test_unusable_row_fails_its_own_request_only():
    class Backend(ScriptedBackend):
        def forward(self, batch: Batch) -> NDArray[np.float32]:
            logits = super().forward(batch)
            rows = [chunk for chunk in batch.chunks if chunk.num_logits]
            for row, chunk in zip(logits, rows, strict=True):
                if chunk.end == 12:
                    row[:] = np.nan
            return logits

    engine = make_engine(backend=Backend())
    add(engine, "sick", "1234567", max_tokens=20, ignore_eos=True)
    add(engine, "well", "1", max_tokens=5, ignore_eos=True)
    events = run(engine)
    end = events["sick"][-1]
    assert isinstance(end, Failed)
    assert end.code == "backend_error"
    assert 0 < len(events["sick"][:-1]) < 19
    assert all(isinstance(event, Output) and event.finish_reason is None for event in events["sick"][:-1])
    assert len(events["well"]) == 5
    assert last(events["well"]).finish_reason == "length"


def test_failed_forward_ends_its_batch_and_the_next_ones_are_served():
    failures = [BackendError("no memory")]

    def fail_once(batch: Batch) -> None:
        if batch.step_id == 3 and failures:
            raise failures.pop()

    engine = make_engine(reply_with("a longer answer"), before_forward=fail_once, max_running=2)
    for request_id in "abc":
        add(engine, request_id)
    events = run(engine)
    for request_id in "ab":
        end = events[request_id][-1]
        assert isinstance(end, Failed)
        assert (end.code, end.message) == ("backend_error", "no memory")
    assert text(events["c"]) == "a longer answer"


def test_nothing_is_published_after_an_abort_and_the_slot_is_free():
    engine = make_engine(max_running=1)
    add(engine, "a", max_tokens=100)
    add(engine, "b", max_tokens=1)
    engine.step()
    engine.abort("a")
    engine.abort("never seen")
    (event,) = engine.step()
    assert isinstance(event, Output)
    assert (event.request_id, event.finish_reason) == ("b", "length")
    assert not engine.has_work
    assert engine.stats().kv_used == 0


def test_step_without_work_does_nothing():
    engine = make_engine()
    assert engine.step() == []
    assert engine.stats().num_steps == 0


def test_warming_up_leaves_nothing_behind() -> None:
    backend = ScriptedBackend(scripted_info())
    engine = make_engine(backend=backend)
    engine.warm_up()
    beat = engine.stats()
    assert (beat.num_steps, beat.num_running, beat.kv_used, beat.kv_retained) == (5, 0, 0, 0)
    add(engine, "r", max_tokens=2)
    alone = make_engine()
    add(alone, "r", max_tokens=2)
    assert run(engine) == run(alone)


def test_a_model_that_cannot_compute_says_so_when_it_is_warmed() -> None:
    def explode(batch: Batch) -> None:
        raise BackendError("broken weights")

    with pytest.raises(BackendError, match="broken weights"):
        make_engine(before_forward=explode).warm_up()
