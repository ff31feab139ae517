"""`stoker bench` against real servers of ours: every scenario over the scripted backend, one over real weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.bench.results import Results, read_results
from stoker.bench.scenarios import SCENARIOS

pytestmark = pytest.mark.slow

LIMIT_S = 240
SMALL = ["--repetitions", "1", "--concurrency", "2", "--prompt-tokens", "20", "--output-tokens", "12"]
AGENTS = ["--turns", "3", "--shared-tokens", "20"]


def bench(*args: str | Path, file: Path, **environment: str) -> tuple[Results, str]:
    """Runs the command, which must succeed; what it wrote and what it printed."""
    command = [sys.executable, "-m", "stoker", "bench", *map(str, args), *SMALL, "--json", str(file)]
    env = os.environ | environment
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return read_results(file), done.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, str]:
    file = tmp_path_factory.mktemp("bench") / "all.json"
    sizes = ("--ctx-size", "2048", "--kv-tokens", "16384")
    return bench("scripted", "--scenario", "all", *sizes, *AGENTS, file=file, STOKER_BACKEND="scripted")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_runs_and_nobody_fails(measured: tuple[Results, str], scenario: str) -> None:
    results, printed = measured
    own = [sample.figures for sample in results.samples if sample.scenario == scenario]
    assert own
    for figures in own:
        assert figures.failures == {}
        assert figures.output_tokens > 0
        assert figures.num_short == 0
        assert figures.counts_from_usage
        assert (figures.ttft_p50_s is None) == (scenario == "offline")
    assert f"\n{scenario}" in printed
    assert results.absent == ()


def test_memory_and_cpu_time_are_those_of_the_whole_server(measured: tuple[Results, str]) -> None:
    results, _ = measured
    (figures,) = [sample.figures for sample in results.samples if sample.scenario == "distinct"]
    assert figures.resources.peak_pss_bytes is not None
    assert figures.resources.peak_pss_bytes > 30e6, "the HTTP process and the engine's"
    assert figures.resources.server_cpu_s is not None


def test_what_was_seen_before_comes_from_the_cache(measured: tuple[Results, str]) -> None:
    figures = {(s.scenario, s.phase): s.figures for s in measured[0].samples}
    shares = {key: (own.cached_tokens or 0) / own.prompt_tokens for key, own in figures.items()}
    assert shares["restart", "again"] > 0.9
    assert shares["agent", "later turns"] > 0.3
    assert (figures["agent", ""].resent_share or 0) > 0.9
    assert shares["shared", ""] > 0.1
    assert shares["distinct", ""] < 0.1


def test_a_real_model_is_measured_as_it_serves(served_smollm2: str, tmp_path: Path) -> None:
    results, printed = bench("serve", f"smollm2={served_smollm2}", file=tmp_path / "a.json")
    (sample,) = results.samples
    figures = sample.figures
    assert figures.failures == {}
    assert figures.output_tokens == figures.num_requests * 12, "the end of generation is ignored"
    assert figures.prompt_tokens == figures.num_requests * 20, "each word is one token"
    assert 0 < (figures.ttft_p50_s or 0) <= (figures.ttft_p95_s or 0) < figures.duration_s
    assert results.servers[0].model.num_parameters == 134_515_008
    assert "distinct, smollm2" in printed
