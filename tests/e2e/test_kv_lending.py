"""Two models with one budget of KV: a busy one has what an idle one leaves, and gives it back; answers are the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from psutil import Process

from tests.e2e.conftest import Server, serving
from tests.tiny_models import TinyModel, write_tiny_model
from tests.waiting import BOUND_S, wait_until

pytestmark = pytest.mark.slow

BUDGET_MIB = 16
MIB = 2**20
SIZES = ["--ctx-size", "400", "--parallel", "4", "--cache-ram", "0", "--threads", "1"]
NUM_SLOTS = 16
PAGE_TOKENS = 32
HUGE_PAGE = 2 * MIB
PROMPTS = [f"{number}: " + f"{'abcdefgh'[number]} word or two, " * 17 for number in range(5)]
"""Each of about 300 tokens: together more than a share, and less than a share with what another model lends."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("models")
    sizes: dict[str, Any] = {"type": "Q8_0", "num_layers": 4, "num_heads": 8, "num_kv_heads": 8, "head_size": 64}
    small: dict[str, Any] = {**sizes, "num_layers": 3}
    paths = [
        write_tiny_model(folder / "a.gguf", TinyModel(seed=1, **sizes)),
        write_tiny_model(folder / "b.gguf", TinyModel(seed=2, **small)),
    ]
    return [str(path) for path in paths]


@pytest.fixture(scope="module")
def server(models: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("lending") / "log"
    with serving(*models, "--kv-budget", str(BUDGET_MIB), *SIZES, log=log) as server:
        yield server


def scrape(url: str) -> str:
    return httpx.get(f"{url}/metrics", trust_env=False, timeout=BOUND_S).text


def metric(url: str, name: str, text: str | None = None) -> dict[str, int]:
    """Its value for each model, now or in an earlier reply."""
    found = re.findall(rf'^stoker_{name}{{model="([^"]+)"}} ([0-9.e+]+)$', text or scrape(url), re.MULTILINE)
    return {model: int(float(value)) for model, value in found}


def complete(url: str, model: str, prompt: str, max_tokens: int = 2) -> dict[str, Any]:
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    reply = httpx.post(f"{url}/v1/completions", json=body | {"logprobs": 3}, trust_env=False, timeout=BOUND_S)
    assert reply.status_code == 200, reply.text
    return reply.json()


def num_cached(reply: dict[str, Any]) -> int:
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def ask_all(url: str, model: str, max_tokens: int = 2) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        return list(threads.map(lambda prompt: complete(url, model, prompt, max_tokens), PROMPTS))


def committed_bytes(server: Server) -> list[int]:
    """Memory that is committed for the pool of each engine: of the mapping that has room for the whole budget."""
    text, wanted = scrape(server.url), list[int]()
    cells = metric(server.url, "kv_capacity_tokens", text)
    for model, num_bytes in metric(server.url, "kv_capacity_bytes", text).items():
        size = num_bytes // cells[model]
        num_pages = -(-(BUDGET_MIB * MIB // size) // PAGE_TOKENS) + 2 * NUM_SLOTS
        wanted.append(-(-num_pages * PAGE_TOKENS * size // 4096) * 4096)
    found = list[int]()
    for child in Process(server.pid).children(recursive=True):
        if "stoker.assembly" in child.cmdline():
            maps = Path(f"/proc/{child.pid}/smaps").read_text()
            sizes = re.findall(r"^Size: +(\d+) kB\n(?:.*\n){2}Rss: +(\d+) kB", maps, re.MULTILINE)
            found += [int(rss) * 1024 for size, rss in sizes if int(size) * 1024 in wanted]
    return found


def capacities(server: Server) -> dict[str, int]:
    return metric(server.url, "kv_capacity_bytes")


def check_budget(server: Server) -> None:
    """Engines report once a second, each at its own time: only later is what both say true at the same moment."""
    wait_until(lambda: sum(capacities(server).values()) <= BUDGET_MIB * MIB)
    assert sum(metric(server.url, "kv_held_bytes").values()) <= BUDGET_MIB * MIB
    spare = 2 * (2 * NUM_SLOTS * PAGE_TOKENS * 8 * 1024 + 2 * HUGE_PAGE)
    committed = committed_bytes(server)
    assert len(committed) == 2
    assert sum(committed) <= BUDGET_MIB * MIB + spare


def test_a_busy_model_borrows_what_an_idle_one_leaves_and_gives_it_back(server: Server, models: list[str]) -> None:
    url = server.url
    share = metric(url, "kv_share_bytes")
    assert sum(share.values()) <= BUDGET_MIB * MIB
    wait_until(lambda: capacities(server) == share)

    def all_cached(model: str) -> bool:
        return all(num_cached(complete(url, model, prompt)) > 250 for prompt in PROMPTS)

    wait_until(lambda: all_cached("a"))
    wait_until(lambda: metric(url, "kv_held_bytes")["a"] > share["a"])
    assert metric(url, "kv_borrowed_bytes")["a"] > 0
    wait_until(lambda: metric(url, "kv_lent_bytes")["b"] > 0)
    assert metric(url, "kv_borrowed_bytes")["b"] == metric(url, "kv_lent_bytes")["a"] == 0
    check_budget(server)

    wait_until(lambda: ask_all(url, "b", 60) and metric(url, "kv_lent_bytes")["b"] == 0)
    wait_until(lambda: metric(url, "kv_borrowed_bytes")["a"] == 0)
    assert metric(url, "kv_held_bytes")["a"] <= share["a"]
    check_budget(server)


def test_answers_have_the_same_bits_as_those_of_pools_that_are_not_shared(
    server: Server, models: list[str], tmp_path: Path
) -> None:
    with ThreadPoolExecutor(2) as threads:
        *_, shared = [list(threads.map(lambda model: ask_all(server.url, model, 60), ("a", "b"))) for _ in range(3)]
    with serving(*models, *SIZES, log=tmp_path / "log") as alone:
        assert metric(alone.url, "kv_share_bytes") == {}, "without a budget nothing is lent"
        expected = [ask_all(alone.url, model, 60) for model in ("a", "b")]
    for its, theirs in zip(shared, expected, strict=True):
        assert [reply["choices"] for reply in its] == [reply["choices"] for reply in theirs]
