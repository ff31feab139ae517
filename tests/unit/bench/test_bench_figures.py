"""Figures against sums done by hand, and what is kept of those who failed."""

from __future__ import annotations

import pytest

from stoker.bench.figures import Limits, Resources, figures_of, is_good, percentile
from stoker.bench.request import Answer, FailureKind, Job
from stoker.bench.results import Results
from stoker.bench.summary import FIGURE_KINDS, Point, remarks, summaries
from stoker.errors import InvalidInput
from tests.unit.bench.bench_samples import make_answer, make_failed, make_figures, make_results, make_sample


def test_times_and_rates() -> None:
    answers = [make_answer(ttft_s=0.2, gap_s=0.1), make_answer(ttft_s=0.6, gap_s=0.3, sent_s=1.0)]
    figures = figures_of(answers, Limits(ttft_s=0.5, itl_s=1))
    assert figures.ttft_p50_s == pytest.approx(0.4)
    assert figures.ttft_p95_s == pytest.approx(0.58)
    assert figures.itl_p50_s == pytest.approx(0.2)
    assert figures.itl_max_s == pytest.approx(0.3)
    assert figures.duration_s == pytest.approx(2.5)
    assert figures.output_tokens_per_s == pytest.approx(8 / 2.5)
    assert figures.prompt_tokens_per_s == pytest.approx(16 / 2.5)
    assert (figures.num_good, figures.goodput_per_s) == (1, pytest.approx(1 / 2.5))


def test_a_given_duration_is_what_rates_are_relative_to() -> None:
    assert figures_of([make_answer()], Limits(), duration_s=8.0).output_tokens_per_s == 0.5


@pytest.mark.parametrize(("ttft_s", "gap_s", "is_within"), [(1, 0.1, True), (1.1, 0.1, False), (1, 0.3, False)])
def test_good_is_within_both_limits(ttft_s: float, gap_s: float, is_within: bool) -> None:
    assert is_good(make_answer(ttft_s=ttft_s, gap_s=gap_s), Limits(ttft_s=1.001, itl_s=0.2)) is is_within


def test_whoever_failed_is_counted_and_not_averaged() -> None:
    figures = make_figures(make_answer(), make_failed(), make_failed(FailureKind.CLOSED, "gone"), make_failed())
    assert figures.failures == {"stalled": 2, "closed early": 1}
    assert figures.num_failed == 3
    assert figures.ttft_p95_s == pytest.approx(0.5)
    assert figures.output_tokens == 4
    assert figures.duration_s == 900.0, "the time that a stalled request took is not taken away"


def test_if_all_fail_there_are_no_times() -> None:
    figures = make_figures(make_failed())
    assert (figures.ttft_p50_s, figures.itl_max_s, figures.output_tokens_per_s) == (None, None, 0)


def test_shorter_answers_are_counted() -> None:
    assert make_figures(make_answer(), make_answer(num_tokens=3)).num_short == 1


def test_an_answer_nobody_watched_has_no_times() -> None:
    answer = Answer(Job((), 4), 0.0, completion_tokens=4, prompt_tokens=2, is_timed=False)
    figures = figures_of([answer], Limits(), duration_s=2.0)
    assert (figures.ttft_p50_s, figures.goodput_per_s, figures.output_tokens_per_s) == (None, None, 2)


def test_percentile_of_nothing_is_none() -> None:
    assert percentile([], 50) is None


def test_a_limit_of_zero_is_refused() -> None:
    with pytest.raises(InvalidInput, match="itl_s"):
        Limits(itl_s=0)


def spread_of(results: Results, label: str) -> tuple[float, float, float] | None:
    (summary,) = summaries(results.samples)
    return summary.spread(next(kind for kind in FIGURE_KINDS if kind.label == label))


def test_the_median_of_repetitions_has_its_least_and_greatest() -> None:
    samples = [make_sample(repetition=i, figures=make_figures(make_answer(ttft_s=t))) for i, t in enumerate((3, 1, 2))]
    assert spread_of(make_results(*samples), "TTFT p50") == pytest.approx((2000, 1000, 3000))
    assert spread_of(make_results(*samples), "peak PSS") is None


def test_summaries_keep_points_and_servers_apart() -> None:
    samples = [make_sample(server, r, concurrency=c) for r in (0, 1) for server in "ab" for c in (1, 2)]
    found = [(s.server, s.point, len(s.figures)) for s in summaries(samples)]
    assert found == [(server, Point("distinct", "", c), 2) for server in "ab" for c in (1, 2)]


def test_remarks_name_failures_and_guesses() -> None:
    unsaid = make_answer()
    unsaid.completion_tokens = unsaid.prompt_tokens = None
    samples = [
        make_sample("a", figures=make_figures(make_answer(), make_failed(detail="nothing came for 9 s"))),
        make_sample("b", figures=make_figures(unsaid, make_answer(num_tokens=2))),
    ]
    lines = remarks(make_results(*samples))
    assert "a, distinct at 1: 1 of 2 requests failed: stalled: nothing came for 9 s" in lines
    assert "b, distinct at 1: 1 answers were shorter than asked for" in lines
    assert any(line.startswith("b streams no usage") for line in lines)
    assert not any(line.startswith("a streams no usage") for line in lines)


def test_remarks_name_a_cache_that_helps_by_accident() -> None:
    cached = make_answer()
    cached.cached_tokens = 6
    by_scenario = {
        scenario: remarks(make_results(make_sample(scenario=scenario, figures=make_figures(cached))))
        for scenario in ("distinct", "agent")
    }
    assert by_scenario == {
        "distinct": ["a, distinct at 1: 75% of the prompts came from the cache: use another --seed"],
        "agent": [],
    }


def test_remarks_name_a_load_generator_that_is_in_its_own_way() -> None:
    busy = make_figures(make_answer(ttft_s=2), resources=Resources(client_cpu_s=1.5))
    assert "the load generator itself used" in remarks(make_results(make_sample(figures=busy)))[0]
