"""The comparison of the simulator with real replicas: both get the same prompts, and large differences are told."""

from __future__ import annotations

from dataclasses import replace

import cluster_check
import pytest
from cluster_check import Outcome

from stoker.runtime.routing import beginning_of


def outcome(
    first_token_s: float = 0.1, end_s: float = 1.0, cached_part: float = 0.5, tokens_per_s: float = 80.0
) -> Outcome:
    """All requests but the slowest tenth take as long."""
    firsts, ends = ([value] * 9 + [4 * value] for value in (first_token_s, end_s))
    return Outcome(firsts, ends, cached_part, tokens_per_s)


def too_large(model: Outcome, real: Outcome) -> list[str]:
    return [each.name for each in cluster_check.differences(model, real, (model, real)) if not each.is_small]


def test_prompts_share_as_many_blocks_as_their_keys() -> None:
    requests = [*cluster_check.arrivals(2, 10.0, seed=1), *cluster_check.crowd(2), *cluster_check.calibration(2)]
    texts = {request: cluster_check.text_of(request) for request in requests}
    for request, text in texts.items():
        found = beginning_of(text)
        assert (len(found.keys), found.num_tokens) == (len(request.beginning.keys), request.beginning.num_tokens)
    ours = {
        request.beginning.keys[:count] for request in requests for count in range(1, len(request.beginning.keys) + 1)
    }
    theirs = {key for text in texts.values() for key in beginning_of(text).keys}
    assert len(ours) == len(theirs), "as many different beginnings"


@pytest.mark.parametrize("sign", [1, -1])
def test_each_figure_has_its_limit(sign: int) -> None:
    real = outcome()
    assert too_large(outcome(0.1 * (1 + 0.09 * sign), 1 + 0.09 * sign, 0.5 + 0.04 * sign, 80 + 7 * sign), real) == []
    tail = replace(real, end_s=[*real.end_s[:-1], real.end_s[-1] * (1 + 0.19 * sign)])
    assert too_large(tail, real) == []
    far = outcome(0.1 * (1 + 0.11 * sign), 1 + 0.11 * sign, 0.5 + 0.06 * sign, 80 + 9 * sign)
    assert too_large(far, real) == ["first token p50, s", "end p50, s", "cached part", "crowd, tokens/s"]
    tail = replace(real, end_s=[*real.end_s[:-1], real.end_s[-1] * (1 + 0.21 * sign)])
    assert too_large(tail, real) == ["end p95, s"]


def test_machine_is_what_was_measured_with_one_answer_and_with_all_places_taken() -> None:
    alone = outcome(first_token_s=0.2, end_s=0.2 + 15 * 0.03)
    together = outcome(first_token_s=0.5, end_s=0.5 + 47 * (0.03 + 7 * 0.02))
    machine = cluster_check.machine_of(alone, together)
    assert (machine.step_s, machine.step_per_answer_s) == (pytest.approx(0.03), pytest.approx(0.02))


def test_what_requests_take_besides_steps_is_added_to_what_is_simulated() -> None:
    machine = cluster_check.machine_of(outcome(), outcome())
    plain = cluster_check.simulated(cluster_check.calibration(2), 2, machine)
    alone = replace(
        plain,
        first_token_s=[value + 0.01 for value in plain.first_token_s],
        end_s=[value + 0.02 for value in plain.end_s],
    )
    way = cluster_check.way_of(alone, 2, machine)
    assert (way.to_first_token_s, way.to_end_s) == (pytest.approx(0.01), pytest.approx(0.02))
    assert cluster_check.simulated(cluster_check.calibration(2), 2, machine, way).end_s == pytest.approx(alone.end_s)
