"""A model that drafts: however often it is wrong, and whatever else happens, every request gets the same answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from stoker.backends.base import Logits
from stoker.backends.scripted import VOCAB_SIZE, ScriptedBackend, scripted_info
from stoker.core.batch import Batch, Entry
from stoker.core.draft_port import Drafted
from stoker.core.model_info import ModelInfo
from stoker.core.params import SamplingParams
from stoker.core.request import Request
from stoker.core.scheduler import SchedulerConfig
from stoker.core.sequence import Sequence as Sequence_
from stoker.engine.draft_model import DraftModel
from stoker.engine.engine import Engine
from stoker.engine.protocol import Output, Submit
from stoker.errors import BackendError
from tests.harness import loaded
from tests.unit.engine.test_drafts import answers, run

TEXT = random.Random(4).choices(range(97, 123), k=400)
"""Repeats nothing, so that the text itself offers little."""
NUM_PROMPT = 3


def write(entries: Sequence[Entry]) -> int:
    return TEXT[(len(entries) - NUM_PROMPT) % len(TEXT)]


class Drafting(ScriptedBackend):
    """Draws what `write` says with a chance, and else something wrong. What it has seen is checked by its parent."""

    def __init__(self, chance: float, info: ModelInfo | None = None) -> None:
        rng = random.Random(7)
        super().__init__(
            info or scripted_info(),
            next_token=lambda entries: write(entries) if rng.random() < chance else 65,
        )


def most_likely(logits: Logits, _: Sequence[tuple[Sequence_, int]]) -> list[Entry]:
    return logits.argmax(axis=1).tolist()


def make_engine(
    draft: ScriptedBackend | None, *, max_draft: int = 15, kv_tokens: int = 2048, max_running: int = 4
) -> Engine:
    """Passes of the draft model take half as long as a step."""
    backend = ScriptedBackend(scripted_info(kv_tokens=kv_tokens), next_token=write)
    config = SchedulerConfig(max_running=max_running, max_draft=max_draft)
    return Engine(loaded(backend, draft_backend=draft), config, clock=count(0.0, 0.25).__next__)


def add(engine: Engine, request_id: str, prompt: str = "ab", **params: Any) -> None:
    engine.add(engine.admit(Submit(request_id, prompt, SamplingParams(**params))))


PARAMS: list[dict[str, Any]] = [
    {"temperature": 0, "max_tokens": 150},
    {"temperature": 1.5, "seed": 3, "max_tokens": 150},
    {"temperature": 0, "logprobs": 3, "max_tokens": 60},
    {"temperature": 0, "repetition_penalty": 1.3, "max_tokens": 150},
    {"temperature": 0, "stop": "".join(map(chr, TEXT[50:53])), "max_tokens": 150},
]


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.9, 1.0])
def test_streams_get_the_same_answers_however_wrong_the_model_is(chance: float) -> None:
    plain, drafting = make_engine(None, max_draft=0), make_engine(Drafting(chance))
    for engine in (plain, drafting):
        for index, params in enumerate(PARAMS):
            add(engine, f"r{index}", **params)
    assert answers(run(drafting)) == answers(run(plain))
    assert drafting.stats().drafted_model_tokens > 0


def test_a_model_that_is_right_saves_steps_and_one_that_is_wrong_is_soon_left_alone() -> None:
    steps: dict[float, int] = {}
    for chance in (0.0, 0.9):
        engine = make_engine(Drafting(chance))
        add(engine, "r", temperature=0, max_tokens=300)
        run(engine)
        steps[chance] = engine.stats().num_steps
        if chance == 0.0:
            assert engine.stats().drafted_model_tokens < 20
            assert engine.stats().accepted_model_tokens == 0
        else:
            assert engine.stats().accepted_model_tokens > 100
    assert steps[0.9] < 0.6 * steps[0.0]


def test_what_was_drafted_is_counted_by_its_source() -> None:
    engine = make_engine(Drafting(0.9))
    add(engine, "r", temperature=0, max_tokens=200)
    timing = [event for event in run(engine) if isinstance(event, Output)][-1].timing
    stats = engine.stats()
    assert timing is not None
    assert timing.num_drafted == stats.drafted_tokens >= stats.drafted_model_tokens > 100
    assert stats.accepted_tokens >= stats.accepted_model_tokens > 80
    assert stats.draft_model_s > 0


def test_a_model_too_slow_to_pay_drafts_little() -> None:
    """Each of its passes takes as long as two steps."""
    clock = count(0.0, 0.25)
    draft = Drafting(1.0)
    forward = draft.forward

    def forward_slowly(batch: Batch) -> Any:
        for _ in range(8):
            next(clock)
        return forward(batch)

    draft.forward = forward_slowly  # type: ignore[method-assign]
    backend = ScriptedBackend(scripted_info(), next_token=write)
    engine = Engine(
        loaded(backend, draft_backend=draft), SchedulerConfig(max_running=4, max_draft=15), clock=clock.__next__
    )
    add(engine, "r", temperature=0, max_tokens=300)
    run(engine)
    assert engine.stats().drafted_model_tokens < 40


def test_companions_preemption_pauses_and_cancellation_change_nothing() -> None:
    """In a pool too small for all, with a draft model whose own pool is smaller still."""
    num_preemptions, num_drafted = zip(*map(run_disturbed, range(12)), strict=True)
    assert sum(num_preemptions) > 10
    assert min(num_drafted) > 0


def run_disturbed(seed: int) -> tuple[int, int]:
    """With the draft model and without; returns how often a sequence was preempted, and what the model drafted."""
    rng = random.Random(seed)
    prompts = ["".join(rng.choices("abcdef", k=rng.choice([2, 30, 60]))) for _ in range(8)]
    most = [rng.randrange(20, 80) for _ in prompts]
    found: list[dict[str, tuple[Any, ...]]] = []
    for draft in (None, small_draft(rng)):
        engine = make_engine(draft, max_draft=15 if draft else 0, kv_tokens=200, max_running=4)
        events: list[Any] = []
        for index, (prompt, max_tokens) in enumerate(zip(prompts, most, strict=True)):
            add(engine, f"r{index}", prompt, temperature=0, max_tokens=max_tokens)
        while engine.has_work or engine.stats().num_paused:
            disturb(engine, rng)
            if engine.has_work:
                events += engine.step()
            engine.check_integrity()
        found.append(answers(events))
    plain, drafted = found
    for request_id in plain.keys() & drafted.keys():
        expected, got = plain[request_id][1], drafted[request_id][1]
        assert got[: len(expected)] == expected[: len(got)], "one of them may have been cancelled earlier"
    return engine.stats().num_preemptions, engine.stats().drafted_model_tokens


def small_draft(rng: random.Random) -> Drafting:
    info = scripted_info(context_size=100, kv_tokens=rng.choice([110, 150, 400]), num_slots=6, max_batch_tokens=32)
    return Drafting(0.8, info)


def disturb(engine: Engine, rng: random.Random) -> None:
    name = f"r{rng.randrange(8)}"
    if rng.random() < 0.005:
        engine.abort(name)
    if rng.random() < 0.03:
        engine.pause(name)
    engine.resume(f"r{rng.randrange(8)}")


def test_a_draft_model_that_fails_is_left_alone() -> None:
    plain, drafting = make_engine(None, max_draft=0), make_engine(draft := Drafting(0.9))
    num_passes = count()

    def fail_later(_: Batch) -> None:
        if next(num_passes) >= 10:
            raise BackendError("broken")

    draft._before_forward = fail_later
    for engine in (plain, drafting):
        add(engine, "r", temperature=0, max_tokens=200)
    assert answers(run(drafting)) == answers(run(plain))
    assert next(num_passes) == 11
    assert drafting.stats().accepted_model_tokens > 0


def test_the_engine_closes_the_draft_model() -> None:
    engine = make_engine(draft := Drafting(1.0))
    engine.close()
    assert draft.is_closed


def sequence(request_id: str, entries: Sequence[int], *, cache_prompt: bool = True) -> Sequence_:
    sampling = SamplingParams(temperature=0, max_tokens=20)
    request = Request(request_id=request_id, prompt=tuple(entries), sampling=sampling, cache_prompt=cache_prompt)
    found = Sequence_.begin(request, 1, scripted_info())
    found.slot = 0
    return found


def make_model(**sizes: Any) -> tuple[DraftModel, ScriptedBackend]:
    backend = ScriptedBackend(scripted_info(**sizes), next_token=lambda entries: (entries[-1] + 1) % 200)
    return DraftModel(backend, VOCAB_SIZE, most_likely, count(0.0).__next__), backend


def test_it_drafts_what_it_thinks_and_cuts_what_was_wrong() -> None:
    model, backend = make_model()
    a, b = sequence("a", [1, 2, 3]), sequence("b", [50])
    assert model.num_missing(a) == 2
    assert model.draft([(a, 3), (b, 1)]).drafts == [[4, 5, 6], [51]]
    a.entries += [4, 9]  # the second one was wrong
    b.entries += [51, 52]  # the only one was right
    assert (model.num_missing(a), model.num_missing(b)) == (0, 1)
    before = backend.num_computed
    found = model.draft([(a, 2), (b, 2)])
    assert found.drafts == [[10, 11], [53, 54]]
    assert (found.num_passes, found.num_caught_up) == (2, 1)
    assert backend.num_computed - before == 5


def test_it_catches_up_in_pieces() -> None:
    model, backend = make_model(max_batch_tokens=16)
    a = sequence("a", range(100))
    assert [model.catch_up(a, 40).num_caught_up for _ in range(4)] == [40, 40, 19, 0]
    assert model.num_missing(a) == 0
    assert model.draft([(a, 1)]) == Drafted([[100]], 1, 0, 1.0)
    assert backend.num_computed == 100


def test_a_conversation_that_goes_on_finds_what_was_computed_of_it_but_not_what_others_keep_to_themselves() -> None:
    for cache_prompt, missing in ((True, 1), (False, 10)):
        model, _ = make_model()
        a = sequence("a", range(10), cache_prompt=cache_prompt)
        model.draft([(a, 1)])
        a.slot = None
        b = sequence("b", [*range(10), 77], cache_prompt=cache_prompt)
        assert model.num_missing(b) == missing - cache_prompt


def test_a_sequence_that_was_away_goes_on_where_it_was_unless_others_needed_the_room() -> None:
    model, _ = make_model(kv_tokens=64, num_slots=2)
    a, b = sequence("a", range(20)), sequence("b", range(100, 140))
    model.draft([(a, 1)])
    a.slot = None  # preempted
    a.entries += [20, 21]
    assert model.num_missing(a) == 1
    a.slot = 0
    model.draft([(a, 1)])
    a.slot = None
    model.draft([(b, 6)])
    assert model.num_missing(a) == 21, "its cells were needed"
    assert model.num_missing(b) == 0


def test_it_gives_nothing_where_it_has_no_room_context_or_token() -> None:
    model, _ = make_model(context_size=30, kv_tokens=40, num_slots=3)
    a, b = sequence("a", range(20)), sequence("b", range(100, 125))
    assert model.draft([(a, 1)]).drafts == [[20]]
    assert model.draft([(b, 1)]).drafts == [[]], "another one that runs has the cells"
    assert model.num_missing(sequence("c", range(31))) is None
    assert model.num_missing(sequence("d", [1, VOCAB_SIZE, 2])) is None
    near_end = sequence("e", range(28))
    a.slot = b.slot = None
    assert model.draft([(near_end, 9)]).drafts == [[28, 29]]


def test_tokens_that_only_fill_up_the_vocabulary_of_the_draft_are_never_drafted() -> None:
    info = replace(scripted_info(), vocab_size=VOCAB_SIZE + 5)
    backend = ScriptedBackend(info, next_token=lambda _: VOCAB_SIZE + 3)
    model = DraftModel(backend, VOCAB_SIZE, most_likely, count(0.0).__next__)
    assert model.draft([(sequence("a", [1]), 1)]).drafts[0][0] < VOCAB_SIZE
