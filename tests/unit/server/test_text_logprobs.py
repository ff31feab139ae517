"""Log-probabilities are matched with the texts of an answer: as a slow and obvious version does, in linear work."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.protocol import Output, PositionLogprobs, Usage
from stoker.server.logprobs import TextLogprobs
from tests.unit.server.fake_runtime import position


class Slow:
    """Looks through all tokens that are left for each text."""

    def __init__(self) -> None:
        self._left: list[PositionLogprobs] = []

    def push(self, positions: list[PositionLogprobs]) -> None:
        self._left += positions

    def of_message(self, text: str) -> list[PositionLogprobs]:
        begin, end = self._span(text) or (0, len(self._left))
        taken = self._left[begin:end]
        del self._left[:end]
        return taken

    def pass_by(self, text: str) -> None:
        if span := self._span(text):
            del self._left[: span[1]]

    def _span(self, text: str) -> tuple[int, int] | None:
        tokens, sought = [each.chosen.token for each in self._left], text.encode()
        at = b"".join(tokens).find(sought)
        if not tokens or at < 0:
            return None
        ends = list(accumulate(len(token) for token in tokens))
        return sum(end <= at for end in ends), sum(end < at + len(sought) for end in ends) + 1


def output(positions: list[Any]) -> Output:
    return Output("r", "", [1] * len(positions), Usage(1, 1, 0), logprobs=positions)


TEXTS = st.text("abé", max_size=4)


@given(st.lists(st.tuples(st.sampled_from(["push", "of_message", "pass_by"]), TEXTS), max_size=20))
def test_it_finds_what_the_slow_version_finds(steps: list[tuple[str, str]]) -> None:
    quick, slow = TextLogprobs(), Slow()
    for step, text in steps:
        if step == "push":
            positions = [position(bytes([byte]), 0) for byte in text.encode()] + [position("", 0), position(text, -1)]
            quick.push(output(positions))
            slow.push(positions)
        elif step == "of_message":
            assert quick.of_message(text) == slow.of_message(text)
        else:
            quick.pass_by(text)
            slow.pass_by(text)
    assert quick.rest() == slow.of_message("not there")


class Counted:
    """A position that counts how often it is looked at."""

    num_looks = 0

    def __init__(self, token: str) -> None:
        self._chosen = position(token, -0.5).chosen

    @property
    def chosen(self) -> Any:
        Counted.num_looks += 1
        return self._chosen


def test_each_token_of_a_long_answer_is_looked_at_once() -> None:
    calls = [f"call {number}" for number in range(1000)]
    tokens = [token for call in calls for token in ("<tool>", *call)]
    logprobs = TextLogprobs()
    Counted.num_looks = 0
    logprobs.push(output([Counted(token) for token in tokens]))
    for call in calls:
        logprobs.pass_by(call)
    assert logprobs.rest() == []
    assert Counted.num_looks == len(tokens)
