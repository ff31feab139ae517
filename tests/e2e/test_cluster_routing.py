"""Conversations over four replicas behind two fronts find nearly as much in the caches as on one server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.bench.results import read_results
from tests.e2e.clusters import LIMIT_S, PATIENCE_S, actors, cluster, needs_ray, num_ready, takes_minutes, until
from tests.e2e.conftest import serving

pytestmark = [
    needs_ray,
    takes_minutes,
    pytest.mark.slow,
    pytest.mark.timeout(LIMIT_S),
]


def cached_share(url: str, results: Path) -> float:
    """The part of all prompt tokens of the scenario `agent` that the server did not compute."""
    command = [sys.executable, "-m", "stoker", "bench", "serve", url, "--scenario", "agent", "--seed", "1"]
    command += ["--repetitions", "1", "--json", str(results)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    (figures,) = [sample.figures for sample in read_results(results).samples if not sample.phase]
    assert figures.num_failed == 0
    return (figures.cached_tokens or 0) / figures.prompt_tokens


def test_four_replicas_find_nearly_what_one_server_finds(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps(["an answer of some words " * 20]))
    arguments = ["scripted", "--script", str(script), "--threads", "1", "--ctx-size", "32768", "--kv-tokens", "400000"]
    with serving(*arguments, log=tmp_path / "one") as one:
        alone = cached_share(one.url, tmp_path / "one.json")
    with cluster(*arguments, "--replicas", "4", "--fronts", "2", log=tmp_path / "four") as four:
        until(lambda: num_ready(four.url) == 4 and len(actors(four, "front")) == 2)
        shared = cached_share(four.url, tmp_path / "four.json")
    assert alone > 0.5
    assert shared >= 0.95 * alone
