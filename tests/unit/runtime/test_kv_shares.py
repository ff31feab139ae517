"""Whatever models hold and want: limits are never more than shares together, and no model waits for its share."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from stoker.runtime.kv_shares import PoolUse, share_out

MIB = 2**20
IDLE = PoolUse(
    share=100 * MIB, least=25 * MIB, most=300 * MIB, limit=100 * MIB, held=0, needed=0, is_short=False, is_quiet=False
)


def busy(needed: int, *, held: int = 0, is_short: bool = False) -> PoolUse:
    """A pool of `IDLE`'s size with requests; in MiB."""
    return replace(IDLE, needed=needed * MIB, held=max(held, needed) * MIB, is_short=is_short)


@st.composite
def pool_uses(draw: st.DrawFn) -> PoolUse:
    share = draw(st.integers(1, 10_000))
    least = draw(st.integers(1, share))
    most = draw(st.integers(share, 50_000))
    limit = draw(st.integers(least, most))
    needed = draw(st.one_of(st.just(0), st.integers(1, 100_000)))
    held = draw(st.integers(0, limit))
    return PoolUse(
        share=share,
        least=least,
        most=most,
        limit=limit,
        held=held,
        needed=needed,
        is_short=draw(st.booleans()),
        is_quiet=draw(st.booleans()),
    )


@given(st.lists(pool_uses(), max_size=6))
def test_limits_are_no_more_than_shares_together_and_each_is_within_its_bounds(pools: list[PoolUse]) -> None:
    limits = share_out(pools)
    assert sum(limits) <= sum(pool.share for pool in pools)
    for pool, limit in zip(pools, limits, strict=True):
        assert pool.least <= limit <= pool.most


@given(st.lists(pool_uses(), min_size=1, max_size=6))
def test_no_model_starves(pools: list[PoolUse]) -> None:
    """At once, whatever the others need, hold or had borrowed."""
    for pool, limit in zip(pools, share_out(pools), strict=True):
        assert limit >= min(pool.needed, pool.share)
        if pool.is_busy:
            assert limit >= min(pool.wanted, pool.share)


@given(st.lists(pool_uses(), min_size=2, max_size=6))
def test_when_all_want_all_each_has_its_share(pools: list[PoolUse]) -> None:
    wanting = [replace(pool, needed=10 * pool.most) for pool in pools]
    assert share_out(wanting) == [pool.share for pool in wanting]


@given(st.lists(pool_uses(), max_size=6))
def test_without_requests_no_model_has_less_than_its_share_for_nothing(pools: list[PoolUse]) -> None:
    """What is lent is used: where no model has requests or holds more than its share, all is given back."""
    idle = [replace(pool, needed=0, held=min(pool.held, pool.share), is_short=False) for pool in pools]
    assert share_out(idle) == [pool.share for pool in idle]


def test_requests_of_one_model_have_what_idle_ones_do_not_keep() -> None:
    assert share_out([busy(250), IDLE]) == [175 * MIB, 25 * MIB]
    assert share_out([busy(150), IDLE, IDLE])[0] >= 150 * MIB
    full = replace(IDLE, held=100 * MIB)
    assert share_out([busy(250), full]) == [175 * MIB, 25 * MIB], "finished conversations go before requests wait"


def test_prefixes_of_a_busy_model_take_the_place_of_others_only_when_these_were_not_used_lately() -> None:
    full = replace(IDLE, held=90 * MIB)
    short = busy(10, held=100, is_short=True)
    assert share_out([short, full]) == [110 * MIB, 90 * MIB]
    assert share_out([short, replace(full, is_quiet=True)]) == [125 * MIB, 75 * MIB]


def test_two_busy_models_borrow_from_a_third_in_equal_parts() -> None:
    assert share_out([busy(300), busy(300), IDLE]) == [int(137.5 * MIB), int(137.5 * MIB), 25 * MIB]


def test_a_model_that_was_busy_keeps_what_it_holds_until_another_one_wants_it() -> None:
    borrower = replace(IDLE, limit=170 * MIB, held=160 * MIB)
    assert share_out([borrower, replace(IDLE, limit=30 * MIB)]) == [160 * MIB, 40 * MIB]
    assert share_out([borrower, busy(80)])[1] >= 92 * MIB


def test_an_engine_that_does_not_answer_keeps_what_it_has() -> None:
    lost = replace(IDLE, limit=150 * MIB).as_it_is
    limits = share_out([lost, busy(40)])
    assert limits[0] <= 150 * MIB
    assert limits[1] >= 40 * MIB
