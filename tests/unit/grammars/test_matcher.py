from __future__ import annotations

import numpy as np

from stoker.backends.scripted import BOS, EOS, IM_END, VOCAB_SIZE
from stoker.core.outline import GrammarText
from stoker.grammars.matcher import GrammarConstraint
from stoker.sampling.constraint import Constraint
from tests.grammars import Answers


def opened(answers: Answers, regex: str) -> GrammarConstraint:
    return answers.open(GrammarText(kind="regex", text=regex))


def bits(constraint: Constraint) -> set[int]:
    words = constraint.mask()
    assert words is not None
    assert words.dtype == np.uint32
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def test_the_mask_has_a_bit_for_each_allowed_token(answers: Answers) -> None:
    constraint = opened(answers, "a[b-d]?")
    assert bits(constraint) == {ord("a")}
    constraint.push(ord("a"))
    assert bits(constraint) == {*b"bcd", EOS, IM_END}
    constraint.push(ord("c"))
    assert bits(constraint) == {EOS, IM_END}


def test_allows_says_the_same_as_the_mask(answers: Answers) -> None:
    constraint = opened(answers, "(ab|[x-z]{1,3}é)*")
    for token in (None, *"xyé".encode(), *b"ab"):
        if token is not None:
            constraint.push(token)
        assert bits(constraint) == {i for i in range(VOCAB_SIZE + 40) if constraint.allows(i)}


def test_an_answer_is_complete_where_nothing_can_follow(answers: Answers) -> None:
    constraint = opened(answers, "ab?")
    assert (constraint.can_end, constraint.is_complete) == (False, False)
    constraint.push(ord("a"))
    assert (constraint.can_end, constraint.is_complete) == (True, False)
    constraint.push(ord("b"))
    assert (constraint.can_end, constraint.is_complete) == (True, True)
    assert [constraint.allows(token) for token in (EOS, IM_END, ord("b"))] == [True, True, False]
    constraint.push(EOS)
    assert constraint.error is None


def test_a_forbidden_token_is_an_error_and_allows_nothing(answers: Answers) -> None:
    constraint = opened(answers, "ab")
    constraint.push(ord("x"))
    assert constraint.error is not None
    assert not constraint.is_complete
    assert not constraint.can_end
    assert not any(constraint.allows(token) for token in range(VOCAB_SIZE))
    assert constraint.validate([ord("a")]) == 0
    assert constraint.forced_text() == []


def test_so_is_an_end_too_early_and_a_token_outside_the_vocabulary(answers: Answers) -> None:
    for token in (EOS, BOS, VOCAB_SIZE + 100):
        constraint = opened(answers, "ab")
        constraint.push(token)
        assert constraint.error is not None, token


def test_a_grammar_that_comes_to_its_limits_later_is_an_error_too(answers: Answers) -> None:
    constraint = opened(answers, "(.{1,1000}){1,1000}")
    for _ in range(3000):
        constraint.push(ord("a"))
        constraint.mask()
        if constraint.error is not None:
            break
    assert constraint.error is None or not constraint.is_complete


def test_drafts_are_validated_without_being_noted(answers: Answers) -> None:
    constraint = opened(answers, "abc")
    assert constraint.validate([*b"abx"]) == 2
    assert constraint.validate([*b"abc", EOS]) == 4
    assert constraint.validate([VOCAB_SIZE + 7]) == 0
    assert bits(constraint) == {ord("a")}


def test_what_is_certain_is_a_guess_and_forces_nothing(answers: Answers) -> None:
    constraint = opened(answers, "abc[de]")
    assert constraint.forced_text() == [*b"abc"]
    assert constraint.forced() is None


def test_a_copy_goes_its_own_way(answers: Answers) -> None:
    one = opened(answers, "ab|ac")
    one.push(ord("a"))
    other = one.copy()
    one.push(ord("b"))
    assert one.is_complete
    assert bits(other) == {*b"bc"}


def test_the_mask_is_not_given_where_everything_is_allowed(answers: Answers) -> None:
    constraint: Constraint = answers.open(GrammarText(kind="lark", text="start: <[*]>*"))
    assert constraint.mask() is None or len(bits(constraint)) < VOCAB_SIZE
