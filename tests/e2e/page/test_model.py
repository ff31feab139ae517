"""The page over a real model: what it shows are the model's own figures."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.page.browser import NEEDS_BROWSER, answered, opened_tokens, say, until
from tests.e2e.page.test_engine import WIDTHS
from tests.waiting import BOUND_S

pytestmark = NEEDS_BROWSER


@pytest.fixture(scope="module")
def address(smollm2_path: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "stoker", "serve", str(smollm2_path), "--port", "0", "--ctx-size", "1024"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            url = next(line.split()[-1] for line in server.stderr if "ready:" in line)
            threading.Thread(target=server.stderr.read, daemon=True).start()
            yield url
        finally:
            server.terminate()
            server.wait(60)


def test_a_model_answers_and_the_second_turn_finds_the_first_one_in_the_cache(page: Any, address: str):
    page.goto(address)
    say(page, "What is the capital of Italy?")
    answered(page)
    say(page, "And of France?")
    until(page, "document.querySelectorAll('article.assistant').length === 2")
    answered(page)
    numbers = page.locator("article.assistant").last.locator(".numbers").inner_text()
    prompt, cached = (int(found) for found in re.findall(r"prompt (\d+), (\d+) cached", numbers)[0])
    assert prompt > cached > 30, "the first question and its answer were not computed again"
    assert re.search(r"[\d.]+ tok/s", numbers)


def test_tokens_have_the_chances_of_the_model_and_another_one_is_written_on(page: Any, address: str):
    page.goto(address)
    say(page, "What is the capital of Italy?")
    answered(page)
    dialog, tokens = opened_tokens(page)
    answer = page.locator("article.assistant .text").inner_text()
    assert "".join(tokens.all_inner_texts()).startswith(answer[:20])
    tokens.nth(1).click()
    chances = [float(cell.split(" %")[0]) for cell in dialog.locator(".lab td:nth-child(2)").all_inner_texts()]
    assert chances == sorted(chances, reverse=True)
    assert 0 < sum(chances) <= 100.5
    assert len(chances) == 10
    other = dialog.locator(".lab tbody button.quiet").first
    text = other.inner_text().strip('"')
    first = tokens.first.inner_text()
    other.click()
    page.get_by_role("log").get_by_text("2/2").wait_for()
    answered(page)
    assert page.locator("article.assistant .text").inner_text().startswith(first + text)


@contextmanager
def kept_busy(address: str, num_streams: int) -> Generator[None]:
    """So many answers are written at any time until the block ends, however fast the model and slow the browser is."""
    over = threading.Event()
    url, body = f"{address}/v1/completions", {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}

    def write() -> None:
        while not over.is_set():
            with httpx.stream("POST", url, json=body, trust_env=False, timeout=BOUND_S) as reply:
                assert reply.status_code == 200
                for _ in reply.iter_lines():
                    if over.is_set():
                        break

    with ThreadPoolExecutor(num_streams) as pool:
        writing = [pool.submit(write) for _ in range(num_streams)]
        try:
            yield
        finally:
            over.set()
    for each in writing:
        each.result()


def test_the_pool_is_the_ledger_while_requests_run(page: Any, address: str):
    page.goto(f"{address}#engine")
    with kept_busy(address, 4):
        page.locator(".sequences tbody tr").nth(3).wait_for()
        page.get_by_role("button", name="Pause").click()
    drawn, held = page.evaluate(WIDTHS)
    assert drawn == held > 0
    slots = page.locator(".icicle g").first.locator("title").text_content()
    assert "tokens" in slots
    page.get_by_role("button", name="Go on").click()
    page.get_by_text("no request is alive").wait_for()
