"""Drafts in the engine: whatever is asked for, everybody gets what he would get without, in fewer steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from stoker.backends.scripted import EOS, NextToken, ScriptedBackend, scripted_info
from stoker.core.batch import Batch, Entry
from stoker.core.model_info import CacheTraits, ModelInfo
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Failed, Output, Submit
from stoker.errors import BackendError
from tests.harness import loaded

REFRAIN = b"row, row, row your boat gently down the stream. "
NUM_PROMPT = 3
"""Begin of sequence, a, b."""
SONG = REFRAIN * 3 + b"Merrily, " * 4 + REFRAIN * 2


def sing(entries: Sequence[Entry]) -> int:
    """Behind a prompt of two letters: much is repeated, and now and then something else comes."""
    position = len(entries) - NUM_PROMPT
    return SONG[position] if position < len(SONG) else EOS


def make_engine(max_draft: int, info: ModelInfo | None = None, next_token: NextToken = sing) -> Engine:
    """On a clock by which every step takes as long as any."""
    backend = ScriptedBackend(info, next_token=next_token)
    config = SchedulerConfig(max_running=4, max_draft=max_draft)
    return Engine(loaded(backend), config, clock=count(1.0).__next__)


def add(engine: Engine, request_id: str, **params: Any) -> None:
    engine.add(engine.admit(Submit(request_id, "ab", SamplingParams(**params))))


def run(engine: Engine) -> list[Output | Failed]:
    found: list[Output | Failed] = []
    while engine.has_work:
        for event in engine.step():
            assert isinstance(event, Output | Failed)
            found.append(event)
        engine.check_integrity()
    return found


def answers(events: list[Output | Failed]) -> dict[str, tuple[Any, ...]]:
    """By request what a client sees of it in the end, but for times."""
    found: dict[str, tuple[Any, ...]] = {}
    for request_id in {event.request_id for event in events}:
        its = [event for event in events if event.request_id == request_id]
        outputs = [event for event in its if isinstance(event, Output)]
        found[request_id] = (
            "".join(output.text for output in outputs),
            [token_id for output in outputs for token_id in output.token_ids],
            [position for output in outputs for position in output.logprobs or ()],
            outputs[-1].usage.completion_tokens,
            outputs[-1].finish_reason,
            outputs[-1].stop_match,
            [event.code for event in its if isinstance(event, Failed)],
        )
    return found


PARAMS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "max_tokens": 90},
    {"temperature": 0, "logprobs": 3},
    {"temperature": 0, "stop": "Merrily, row"},
    {"temperature": 0, "stop": ["Merrily, Mer", "x"], "min_tokens": 60},
    {"temperature": 1.5, "seed": 3},
    {"temperature": 0, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
    {"temperature": 0.8, "seed": 5, "dry_multiplier": 0.8, "max_tokens": 200},
    {"temperature": 0.7, "seed": 7, "mirostat": 2, "max_tokens": 120},
    {"temperature": 0.7, "seed": 7, "mirostat": 1, "max_tokens": 120},
    {"temperature": 0.8, "seed": 8, "samplers": ["temperature", "xtc", "penalties", "top_k"], "presence_penalty": 0.4},
    {"seed": 9, "samplers": ["temperature", "min_p", "adaptive_p"], "adaptive_target": 0.9, "min_keep": 2},
    {"temperature": 0, "ignore_eos": True, "max_tokens": 350},
]


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_one_stream_gets_the_same_answer(params: dict[str, Any]) -> None:
    plain, drafting = make_engine(0), make_engine(15)
    for engine in (plain, drafting):
        add(engine, "r", **params)
    expected, found = run(plain), run(drafting)
    assert answers(found) == answers(expected)
    assert len(found) == len(expected), "one output a token"
    beat, plain_beat = drafting.stats(), plain.stats()
    assert beat.accepted_tokens > 20
    assert beat.num_steps < 0.7 * plain_beat.num_steps


def test_many_streams_get_the_same_answers() -> None:
    plain, drafting = make_engine(0), make_engine(15)
    for engine in (plain, drafting):
        for index, params in enumerate(PARAMS):
            add(engine, f"r{index}", **params)
    assert answers(run(drafting)) == answers(run(plain))
    assert drafting.stats().accepted_tokens > 200


def test_drafts_are_counted() -> None:
    engine = make_engine(15)
    add(engine, "r", temperature=0)
    timing = run(engine)[-1].timing  # type: ignore[union-attr]
    beat = engine.stats()
    assert timing is not None
    assert (timing.num_drafted, timing.num_accepted) == (beat.drafted_tokens, beat.accepted_tokens)
    assert 0 < beat.num_drafts < beat.accepted_tokens < beat.drafted_tokens
    assert beat.step_tokens.total == NUM_PROMPT + len(SONG), "what was drafted wrongly is not counted"


def test_an_unusable_row_inside_a_draft_loses_nothing_before_it() -> None:
    """Without drafts those tokens would have been sent."""
    plain, drafting = make_engine(0), make_engine(15)
    for engine in (plain, drafting):
        break_rows(engine, at=131)
        add(engine, "r", temperature=0)
    expected, found = run(plain), run(drafting)
    assert answers(found) == answers(expected)
    assert isinstance(found[-1], Failed)
    assert len(answers(found)["r"][0]) > 100


def test_a_step_that_fails_for_its_drafts_is_repeated_without() -> None:
    plain, drafting = make_engine(0), make_engine(15)
    forward = drafting._backend.forward

    def forward_little(batch: Batch) -> Any:
        if batch.num_drafted > 8:
            raise BackendError("no memory for so many rows")
        return forward(batch)

    drafting._backend.forward = forward_little  # type: ignore[method-assign]
    for engine in (plain, drafting):
        add(engine, "r", temperature=0)
        add(engine, "s", temperature=0, max_tokens=100)
    assert answers(run(drafting)) == answers(run(plain))


def test_what_the_warm_up_drafts_is_not_counted() -> None:
    engine = make_engine(15, next_token=lambda _: 7)
    engine.warm_up()
    beat = engine.stats()
    assert (beat.num_drafts, beat.drafted_tokens, beat.accepted_tokens) == (0, 0, 0)


def test_what_was_drafted_behind_a_stop_string_is_forgotten() -> None:
    plain, drafting = make_engine(0), make_engine(15)
    for engine in (plain, drafting):
        add(engine, "r", temperature=0, stop="stream. r", min_tokens=100)
    expected, found = run(plain), run(drafting)
    assert answers(found) == answers(expected)
    assert drafting.stats().kv_retained == plain.stats().kv_retained
    timing = found[-1].timing  # type: ignore[union-attr]
    assert timing is not None
    assert timing.num_accepted == drafting.stats().accepted_tokens < len(answers(found)["r"][1])


def break_rows(engine: Engine, *, at: int) -> None:
    """The row that is computed for this position holds NaN."""
    forward = engine._backend.forward

    def forward_broken(batch: Batch) -> Any:
        logits = np.array(forward(batch))
        row = 0
        for chunk in batch.chunks:
            first = chunk.end - chunk.num_logits
            if first <= at < chunk.end:
                logits[row + at - first] = np.nan
            row += chunk.num_logits
        return logits

    engine._backend.forward = forward_broken  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "changes",
    [
        {"is_batch_invariant": False},
        {"traits": CacheTraits(can_truncate=False, can_copy=False, shares_cells=False)},
    ],
    ids=str,
)
def test_nothing_is_drafted_for_a_model_that_would_notice(changes: dict[str, Any]) -> None:
    engine = make_engine(15, info=replace(scripted_info(), **changes))
    add(engine, "r", temperature=0)
    run(engine)
    assert engine.stats().drafted_tokens == 0
