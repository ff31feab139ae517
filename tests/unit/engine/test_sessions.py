"""A conversation with a name stays in a pool that others fill, for its time and within its bounds."""

from __future__ import annotations

from typing import cast

import pytest

from stoker.backends.scripted import ScriptedBackend, reply_with, scripted_info
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Output, SessionUse, Submit
from stoker.engine.question_messages import EndSession, ListSessions, SessionEnded, SessionList
from stoker.engine.sessions import MAX_OF_OWNER
from tests.harness import loaded
from tests.unit.engine.test_engine import Clock

TALK = "the name of the dog is Bello and it lives in a red house; "
TTL_S = 60.0
BOS = 1
"""What all prompts have in common."""


class Talk:
    """An engine with room for four conversations of this length, and the questions to it."""

    def __init__(self) -> None:
        self.clock = Clock()
        backend = ScriptedBackend(
            scripted_info(kv_tokens=4 * (len(TALK) + 8), num_slots=32), next_token=reply_with("yes")
        )
        self.engine = Engine(loaded(backend), SchedulerConfig(max_running=1), clock=self.clock)
        self._number = 0
        self.say("0")  # from here all others take the BOS that they have in common

    def say(self, prompt: str, session: str = "", owner: str = "a", *, cache_prompt: bool = True) -> int:
        """How many tokens of the prompt were in the pool."""
        self._number += 1
        use = SessionUse(f"{owner}/{session}", owner, TTL_S) if session else None
        submit = Submit(
            f"r{self._number}", prompt, SamplingParams(temperature=0), session=use, cache_prompt=cache_prompt
        )
        self.engine.add(self.engine.admit(submit))
        outputs: list[Output] = []
        while self.engine.has_work:
            outputs += cast("list[Output]", self.engine.step())
            self.engine.check_integrity()
        return outputs[-1].usage.cached_tokens

    def fill(self, num_prompts: int = 8) -> None:
        """Others come, more than there is room for."""
        for number in range(num_prompts):
            self.say(chr(65 + number) * len(TALK))

    def listed(self, owner: str = "a") -> dict[str, int]:
        found = cast("SessionList", self.engine.answer(ListSessions(owner=owner)))
        return {state.name: state.num_tokens for state in found.sessions}


def test_a_session_outlives_what_others_leave() -> None:
    talk = Talk()
    talk.say(TALK)
    talk.fill()
    assert talk.say(TALK) <= BOS, "without a session it has left"
    talk = Talk()
    talk.say(TALK, "s")
    talk.fill()
    assert talk.say(TALK + "yes?", "s") >= len(TALK)
    talk.fill()
    assert talk.listed() == {"a/s": pytest.approx(len(TALK) + 7, abs=3)}


def test_only_its_latest_turn_is_preferred() -> None:
    talk = Talk()
    talk.say(TALK, "s")
    talk.say(TALK.upper(), "s")
    talk.fill()
    assert talk.say(TALK) <= BOS
    assert talk.say(TALK.upper()) >= len(TALK) - 1


def test_its_time_ends_after_its_last_request() -> None:
    talk = Talk()
    talk.say(TALK, "s")
    talk.clock.now += TTL_S - 1
    talk.say(TALK, "s")
    talk.clock.now += TTL_S - 1
    assert set(talk.listed()) == {"a/s"}
    talk.clock.now += 2
    assert talk.listed() == {}
    talk.fill()
    assert talk.say(TALK) <= BOS, "what it left is evicted as everything else"


def test_a_session_is_ended_and_its_kv_forgotten() -> None:
    talk = Talk()
    talk.say(TALK, "s")
    assert cast("SessionEnded", talk.engine.answer(EndSession(name="a/s"))).was_there
    assert talk.listed() == {}
    assert talk.say(TALK) <= BOS
    assert not cast("SessionEnded", talk.engine.answer(EndSession(name="a/s"))).was_there


def test_sessions_are_evicted_too_when_nothing_else_is_left() -> None:
    talk = Talk()
    for number in range(8):
        talk.say(chr(97 + number) * len(TALK), f"s{number}")
    assert len(talk.listed()) == 8
    assert sum(talk.listed().values()) <= 4 * (len(TALK) + 8)


def test_an_owner_has_so_many_at_most_and_sees_only_its_own() -> None:
    talk = Talk()
    talk.say(TALK, "mine", "b")
    for number in range(MAX_OF_OWNER + 2):
        talk.say("x", f"s{number}")
    assert set(talk.listed()) == {f"a/s{number}" for number in range(2, MAX_OF_OWNER + 2)}
    assert set(talk.listed("b")) == {"b/mine"}


def test_a_request_that_leaves_nothing_begins_no_session() -> None:
    talk = Talk()
    talk.say(TALK, "s", cache_prompt=False)
    assert talk.listed() == {}
