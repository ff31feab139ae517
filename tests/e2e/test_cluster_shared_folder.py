"""Two replicas of a real model share a folder: what one has computed, the other reads instead of computing it again."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.clusters import LIMIT_S, PATIENCE_S, ask, cluster, needs_ray, until, until_ready
from tests.e2e.conftest import Server

pytestmark = [needs_ray, pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]

STEM = " ".join(f"Line {number} of a report says that the {number}th well is dry." for number in range(60))
BLOCK = 32


@contextmanager
def occupied(server: Server, prompt: str) -> Generator[None]:
    """A replica answers this prompt until the block ends, so that it has no room for another request."""
    body = {"prompt": prompt, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, trust_env=False, timeout=PATIENCE_S) as reply:
        assert reply.status_code == 200
        next(reply.iter_lines())
        yield


def test_other_replica_reads_what_one_has_computed(smollm2_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    arguments = [str(smollm2_path), "--replicas", "2", "--threads", "1", "--parallel", "1", "--ctx-size", "8192"]
    with cluster(*arguments, "--kv-dir", str(folder), log=tmp_path / "log") as server:
        until_ready(server.url, 2)
        with occupied(server, STEM):
            until(lambda: len([*folder.rglob("*.kv")]) * BLOCK >= 900)
            other = ask(server.url, STEM + " What").json()
        usage = other["usage"]
        assert usage["prompt_tokens"] > 900
        assert usage["prompt_tokens_details"]["cached_tokens"] >= 0.9 * usage["prompt_tokens"]
