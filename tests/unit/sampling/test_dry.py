from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.params import BUILT_IN, SamplingParams
from stoker.sampling.dry import SequenceBreakers, _z_function
from stoker.sampling.edits import Edit
from stoker.sampling.sampler import Sampler

WORDS = [b"the", b" cat", b" sat", b" on", b".", b"\n", b" mat", b""]


def open_dry(prompt: list[int], **numbers: object) -> Edit:
    params = SamplingParams(dry_multiplier=1.0, dry_base=2.0, **numbers).filled_from(BUILT_IN)  # type: ignore[arg-type]
    sampler = Sampler(vocab_size=len(WORDS), eog_token_ids=frozenset(), token_bytes=WORDS.__getitem__)
    return sampler.open(params, prompt, seed=0).edits[0]


def penalties(edit: Edit) -> dict[int, float]:
    row = np.zeros(len(WORDS), dtype=np.float32)
    edit.apply(row)
    return {int(i): -float(row[i]) for i in np.flatnonzero(row)}


def test_the_token_that_would_go_on_with_a_repetition_is_penalised_by_its_length() -> None:
    #                    the cat sat on  the cat sat
    edit = open_dry([0, 1, 2, 3, 0, 1, 2])
    assert penalties(edit) == {3: 2.0 ** (3 - 2)}
    edit.push(3)
    assert penalties(edit) == {0: 2.0 ** (4 - 2)}
    edit.push(6)
    assert edit.is_idle


def test_a_repetition_does_not_go_over_a_sequence_breaker() -> None:
    assert open_dry([0, 5, 2, 3, 0, 5, 2]).is_idle
    assert penalties(open_dry([0, 5, 2, 3, 0, 5, 2], dry_sequence_breakers=())) == {3: 2.0}


def test_a_breaker_may_span_tokens_and_be_part_of_a_token() -> None:
    assert open_dry([0, 1, 2, 3, 0, 1, 2], dry_sequence_breakers=["at s"]).is_idle
    assert penalties(open_dry([0, 1, 2, 3, 0, 1, 2], dry_sequence_breakers=["at o"])) == {3: 2.0}


def test_a_token_that_is_a_breaker_is_never_penalised() -> None:
    assert open_dry([0, 1, 5, 0, 1]).is_idle


def test_the_window_bounds_what_is_seen() -> None:
    assert penalties(open_dry([0, 1, 2, 3, 0, 1], dry_penalty_last_n=6)) == {2: 1.0}
    assert open_dry([0, 1, 2, 3, 0, 1], dry_penalty_last_n=5, dry_allowed_length=2).is_idle


def test_a_penalty_stays_finite_however_long_the_repetition() -> None:
    found = penalties(open_dry([0] * 2000))
    assert found.keys() == {0}
    assert 1e37 < found[0] < 1e39


def test_an_empty_history_has_nothing_to_repeat() -> None:
    edit = open_dry([])
    for token_id in (0, 1, 0, 1, 0, 1):
        edit.push(token_id)
    assert penalties(edit) == {0: 4.0}


@given(
    history=st.lists(st.integers(0, len(WORDS) - 1), max_size=700),
    breakers=st.sampled_from([(b"\n",), (b"at", b"."), (b"cat sat on",), (b"n.", b"the cat sat on\nthe")]),
    num_pushed=st.integers(0, 20),
)
def test_tokens_since_a_breaker(history: list[int], breakers: tuple[bytes, ...], num_pushed: int) -> None:
    split = max(0, len(history) - num_pushed)
    found = SequenceBreakers(breakers, WORDS.__getitem__, history[:split])
    for token_id in history[split:]:
        found.push(token_id)
    text, since = b"", 0
    for token_id in history:
        before, text = len(text), text + WORDS[token_id]
        is_end = any(text.find(b, max(0, before - len(b) + 1)) >= 0 for b in breakers)
        since = 0 if is_end else since + 1
    assert found.num_since == since


def test_a_breaker_that_begins_before_the_text_first_looked_at() -> None:
    history = [1, 2, 3, 5, 0] + [6] * 253
    assert SequenceBreakers((b"\n", b"cat sat on\nthe"), WORDS.__getitem__, history).num_since == 253


@given(st.lists(st.integers(0, 2), max_size=60))
def test_z_function(tokens: list[int]) -> None:
    def common_prefix(k: int) -> int:
        length = 0
        while k + length < len(tokens) and tokens[length] == tokens[k + length]:
            length += 1
        return length

    assert _z_function(tokens) == [0, *(common_prefix(k) for k in range(1, len(tokens)))][: len(tokens)]
