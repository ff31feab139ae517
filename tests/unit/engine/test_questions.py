"""Questions to an engine: what is in it, which tokens a text has; and what becomes of them when nobody answers."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing

import pytest

from stoker.backends.scripted import BOS, EOS, reply_with
from stoker.core.slot_state import SlotState
from stoker.engine.engine import Engine
from stoker.engine.protocol import Command, Submit
from stoker.engine.question_messages import (
    Answer,
    Detokenize,
    Detokenized,
    Erased,
    EraseSlots,
    ListSlots,
    SlotList,
    Tokenize,
    Tokenized,
    Unanswered,
)
from stoker.engine.questions import MAX_QUESTIONS, Questions
from stoker.errors import EngineCrashed, InvalidInput, ModelNotLoaded, Overloaded, Timeout
from tests.unit.engine.test_client import ENDLESS, answer, first_output, started
from tests.unit.engine.test_engine import add, make_engine, outputs
from tests.unit.engine.test_engine import run as run_engine
from tests.waiting import run, until


def ask_slots(engine: Engine) -> list[SlotState]:
    reply = engine.answer(ListSlots())
    assert isinstance(reply, SlotList)
    return reply.slots


def test_tokens_of_a_prompt_and_of_a_text():
    engine = make_engine()
    reply = engine.answer(Tokenize("hé", question_id="q"))
    assert reply == Tokenized("q", [BOS, *"hé".encode()], [b"<s>", b"h", b"\xc3", b"\xa9"])
    special = engine.answer(Tokenize("</s>", wants_bos=False, question_id="q"))
    assert special == Tokenized("q", [EOS], [b"</s>"])
    plain = engine.answer(Tokenize("</s>", wants_bos=False, parse_special=False))
    assert isinstance(plain, Tokenized)
    assert plain.token_ids == [*b"</s>"]


def test_text_of_tokens():
    engine = make_engine()
    assert engine.answer(Detokenize([BOS, *"hé".encode(), 0xC3], question_id="q")) == Detokenized("q", "<s>hé\ufffd")
    with pytest.raises(InvalidInput) as refusal:
        engine.answer(Detokenize([5, 10**6]))
    assert refusal.value.fields["parameter"] == "tokens"


def test_slots_show_who_runs_and_what_is_left_behind():
    engine = make_engine(reply_with("abc"))
    add(engine, "r", "prompt", max_tokens=2)
    engine.step()
    (running,) = [state for state in ask_slots(engine) if state.request_id]
    assert (running.request_id, running.num_prompt, running.num_completion) == ("r", 7, 1)
    run_engine(engine)
    slots = ask_slots(engine)
    assert [state.slot for state in slots] == list(range(16))
    assert all(state.request_id is None for state in slots)
    assert sum(state.num_tokens for state in slots) == 8, "the last token is sampled, not computed"


def test_erasing_forgets_what_is_left_and_spares_who_runs():
    engine = make_engine(reply_with("abc"))
    add(engine, "left", "prompt", max_tokens=2)
    run_engine(engine)
    (left,) = [state.slot for state in ask_slots(engine) if state.num_tokens]
    add(engine, "running", "other", max_tokens=3)
    engine.step()
    (running,) = [state.slot for state in ask_slots(engine) if state.request_id]
    with pytest.raises(InvalidInput, match="running"):
        engine.answer(EraseSlots(running))
    with pytest.raises(InvalidInput, match="no slot 99"):
        engine.answer(EraseSlots(99))
    assert engine.answer(EraseSlots(left, question_id="q")) == Erased("q", 8)
    assert engine.answer(EraseSlots(question_id="q")) == Erased("q", 0)
    engine.check_integrity()
    run_engine(engine)
    add(engine, "again", "prompt", max_tokens=2)
    assert outputs(run_engine(engine)["again"])[-1].usage.cached_tokens == 1, "BOS, which the other one has too"


def test_client_asks_its_child():
    async def test() -> None:
        async with started() as client:
            assert (await client.ask(Tokenize("ab"))).token_ids == [BOS, *b"ab"]
            assert (await client.ask(Detokenize([EOS]))).text == "</s>"
            await answer(client, "Q:")
            slots = (await client.ask(ListSlots())).slots
            assert max(state.num_tokens for state in slots) > len("Q:")
            assert (await client.ask(EraseSlots())).num_tokens > 0
            assert max(state.num_tokens for state in (await client.ask(ListSlots())).slots) == 0
            with pytest.raises(InvalidInput):
                await client.ask(Detokenize([10**6]))
            with pytest.raises(InvalidInput):
                await client.ask(EraseSlots(-1))

    run(test())


def test_slots_are_listed_while_a_request_runs():
    async def test() -> None:
        async with started() as client, aclosing(client.generate(Submit("r", "Q:", ENDLESS))) as events:
            await first_output(events)
            assert "r" in [state.request_id for state in (await client.ask(ListSlots())).slots]

    run(test())


def test_fault_in_the_tokenizer_concerns_its_question_only():
    async def test() -> None:
        async with started() as client:
            with pytest.raises(Exception, match="a fault in the tokenizer"):
                await client.ask(Tokenize("FAULT"))
            assert (await client.ask(Tokenize("ok"))).token_ids == [BOS, *b"ok"]

    run(test())


def test_question_ends_when_the_child_dies():
    async def test() -> None:
        async with started() as client:
            question = asyncio.ensure_future(client.ask(Tokenize("SLOW")))
            await client.ask(Tokenize("after it"))
            assert client.child_pid is not None
            os.kill(client.child_pid, signal.SIGKILL)
            with pytest.raises(EngineCrashed):
                await question
            await until(lambda: client.health().is_ready)
            assert (await client.ask(Detokenize([65]))).text == "A"

    run(test())


def test_question_ends_when_the_model_is_closed():
    async def test() -> None:
        async with started() as client:
            question = asyncio.ensure_future(client.ask(Tokenize("SLOW")))
            await client.ask(Tokenize("after it"))
            await client.close()
            with pytest.raises(ModelNotLoaded):
                await question
            with pytest.raises(ModelNotLoaded):
                await client.ask(Tokenize("too late"))

    run(test())


class Wire:
    """Takes what is sent and answers nothing by itself."""

    def __init__(self) -> None:
        self.sent: list[Command] = []

    def __call__(self, command: Command) -> None:
        self.sent.append(command)


def test_unanswered_question_times_out_and_leaves_nothing():
    async def test() -> None:
        questions = Questions(Wire(), answer_s=0.01)
        for _ in range(3):
            with pytest.raises(Timeout):
                await questions.ask(ListSlots())
        assert not questions._pending

    run(test())


def test_number_of_questions_is_bounded():
    async def test() -> None:
        wire = Wire()
        questions = Questions(wire)
        asked = [asyncio.ensure_future(questions.ask(ListSlots())) for _ in range(MAX_QUESTIONS)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await questions.ask(ListSlots())
        for command in wire.sent:
            assert isinstance(command, ListSlots)
            questions.on_answer(SlotList(command.question_id, []))
        assert await asyncio.gather(*asked) == [SlotList(f"q{i}", []) for i in range(MAX_QUESTIONS)]

    run(test())


@pytest.mark.parametrize("late", [SlotList("q0", []), Unanswered("q0", "x", "x", {})])
def test_answer_that_nobody_waits_for_is_ignored(late: Answer):
    async def test() -> None:
        questions = Questions(Wire())
        question = asyncio.ensure_future(questions.ask(ListSlots()))
        await asyncio.sleep(0)
        question.cancel()
        await asyncio.wait([question])
        questions.on_answer(late)
        assert not questions._pending

    run(test())
