"""Conversations over four replicas behind two fronts find nearly as much in the caches as on one server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.bench.results import read_results
from tests.e2e.clusters import LIMIT_S, PATIENCE_S, actors, cluster, needs_ray, takes_minutes, until, until_ready
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


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    script = tmp_path_factory.mktemp("script") / "script.json"
    script.write_text(json.dumps(["an answer of some words " * 20]))
    return ["scripted", "--script", str(script), "--threads", "1", "--ctx-size", "32768", "--kv-tokens", "400000"]


@pytest.fixture(scope="module")
def alone(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> float:
    """What one server finds."""
    folder = tmp_path_factory.mktemp("one")
    with serving(*arguments, log=folder / "log") as one:
        return cached_share(one.url, folder / "results.json")


@pytest.mark.parametrize(("says", "least"), [(True, 0.95), (False, 0.85)])
def test_four_replicas_find_nearly_what_one_server_finds(
    arguments: list[str], alone: float, says: bool, least: float, tmp_path: Path
) -> None:
    """Args: `says` is whether replicas say which blocks they hold, as engines with recurrent layers do not."""
    environ = {} if says else silenced(tmp_path)
    with cluster(*arguments, "--replicas", "4", "--fronts", "2", log=tmp_path / "four", **environ) as four:
        until_ready(four.url, 4)
        until(lambda: len(actors(four, "front")) == 2)
        shared = cached_share(four.url, tmp_path / "four.json")
    assert says or len(list(tmp_path.glob("silent-*"))) == 4
    print(f"one server finds {alone:.3f} of all prompt tokens, four replicas {shared:.3f}: {shared / alone:.3f}")
    assert alone > 0.5
    assert shared >= least * alone


def silenced(folder: Path) -> dict[str, str]:
    """An environment in which replicas do not say which blocks they hold. Each leaves a file named `silent-…`."""
    (folder / "sitecustomize.py").write_text(_SILENCED.format(folder=str(folder)))
    return {"PYTHONPATH": str(folder)}


_SILENCED = """
import importlib.machinery, os, pathlib, sys

def listen(follower, listener):
    pathlib.Path({folder!r}, "silent-%d" % os.getpid()).touch()

class Finder:
    def find_spec(name, path, target=None):
        if name != "stoker.runtime.block_follower":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module
        def exec_module(module):
            execute(module)
            module.BlockFollower.listen = listen
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder)
"""
