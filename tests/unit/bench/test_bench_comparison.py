"""Ratios of medians; what was not asked the same is not compared; results survive their file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.bench.comparison import compare, joined
from stoker.bench.results import SCHEMA_VERSION, ModelIdentity, Plan, Results, read_results, write_results
from stoker.bench.runner import make_plan
from stoker.errors import InvalidInput
from tests.unit.bench.bench_samples import (
    MODEL,
    make_about,
    make_answer,
    make_failed,
    make_figures,
    make_results,
    make_sample,
)


def plan_with(key: str, value: int) -> Plan:
    fields: dict[str, Any] = {key: value}
    return make_plan("distinct", **fields)


def two_servers(other_model: ModelIdentity = MODEL, **other: Any) -> Results:
    samples = [make_sample("a", r, make_figures(make_answer(ttft_s=1 + r / 10))) for r in range(3)]
    for repetition in range(3):
        fields: dict[str, Any] = {"ttft_s": 2 + repetition / 10} | other
        samples.append(make_sample("b", repetition, make_figures(make_answer(**fields))))
    return make_results(*samples, servers=(make_about("a"), make_about("b", other_model)))


def test_the_ratio_is_that_of_the_medians() -> None:
    (comparison,) = compare(two_servers())
    pairs = {pair.kind.label: pair for pair in comparison.pairs()}
    assert pairs["TTFT p50"].ratio == pytest.approx(2.1 / 1.1)
    assert pairs["TTFT p50"].is_clear
    assert pairs["ITL p50"].ratio == pytest.approx(1)
    assert not pairs["ITL p50"].is_clear
    assert "peak PSS" not in pairs


def test_a_ratio_to_nothing_is_none() -> None:
    (comparison,) = compare(two_servers())
    assert {pair.kind.label: pair.ratio for pair in comparison.pairs()}["cached"] is None


@pytest.mark.parametrize(
    ("model", "is_same"),
    [
        (ModelIdentity(name="other.gguf", num_parameters=135, vocab_size=49152), True),
        (ModelIdentity(name="m", num_parameters=360, vocab_size=49152), False),
        (ModelIdentity(name="m", num_parameters=135, vocab_size=32000), False),
        (ModelIdentity(name="/models/M.gguf"), True),
        (ModelIdentity(name="other"), False),
    ],
)
def test_different_models_are_not_compared(model: ModelIdentity, is_same: bool) -> None:
    if is_same:
        assert compare(two_servers(model))
    else:
        with pytest.raises(InvalidInput, match="not comparable: a served m"):
            compare(two_servers(model))


@pytest.mark.parametrize(
    ("other", "said"), [({"num_tokens": 3}, "4.0 output_tokens per request, b 3.0"), ({"words": 20}, "prompt_tokens")]
)
def test_different_lengths_are_not_compared(other: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        compare(two_servers(**other))


def test_failed_requests_do_not_count_as_short_ones() -> None:
    samples = [make_sample("a"), make_sample("b", figures=make_figures(make_answer(), make_failed()))]
    assert compare(make_results(*samples))


def test_one_server_alone_cannot_be_compared() -> None:
    with pytest.raises(InvalidInput, match="only one server"):
        compare(make_results(make_sample("a")))


def test_servers_without_a_common_point_cannot_be_compared() -> None:
    with pytest.raises(InvalidInput, match="nothing to compare"):
        compare(make_results(make_sample("a", concurrency=1), make_sample("b", concurrency=2)))


def test_files_whose_servers_have_one_name_are_told_apart_by_the_file() -> None:
    together = joined({"before": make_results(make_sample("stoker")), "after": make_results(make_sample("stoker"))})
    (comparison,) = compare(together)
    assert (comparison.base.server, comparison.other.server) == ("before", "after")


def test_files_with_different_servers_keep_their_names() -> None:
    together = joined({"x": make_results(make_sample("a")), "y": make_results(make_sample("b"))})
    assert [server.name for server in together.servers] == ["a", "b"]


@pytest.mark.parametrize("key", ["prompt_tokens", "output_tokens", "num_requests", "turns", "shared_tokens"])
def test_files_with_different_plans_are_not_joined(key: str) -> None:
    plans = [make_plan("distinct"), plan_with(key, 7)]
    files = {str(i): make_results(make_sample("a"), plans=(plan,)) for i, plan in enumerate(plans)}
    with pytest.raises(InvalidInput, match=f"distinct was run with {key}"):
        joined(files)


def test_results_survive_their_file(tmp_path: Path) -> None:
    results = two_servers()
    write_results(results, tmp_path / "r.json")
    assert read_results(tmp_path / "r.json") == results


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 1}', "\x00"])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(InvalidInput, match="holds no results"):
        read_results(tmp_path / "r.json")


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    changed = msgspec.structs.replace(two_servers(), schema_version=SCHEMA_VERSION + 1)
    write_results(changed, tmp_path / "r.json")
    with pytest.raises(InvalidInput, match=f"schema version {SCHEMA_VERSION + 1}"):
        read_results(tmp_path / "r.json")


def test_files_that_cannot_be_had_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="missing"):
        read_results(tmp_path / "missing.json")
    with pytest.raises(InvalidInput, match="cannot be written"):
        write_results(two_servers(), tmp_path / "no folder" / "r.json")


@pytest.mark.parametrize("field", ["prompt_tokens", "output_tokens", "repetitions", "num_requests", "turns"])
def test_a_plan_of_nothing_is_refused(field: str) -> None:
    with pytest.raises(InvalidInput, match="at least 1"):
        plan_with(field, 0)


def test_an_unknown_scenario_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no scenario 'fast'; there are distinct, shared"):
        make_plan("fast")
