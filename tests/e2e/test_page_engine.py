"""The engine view of the page in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.e2e.browser import NEEDS_BROWSER, say, until
from tests.e2e.browser import address as address
from tests.e2e.browser import browser as browser
from tests.e2e.browser import context as context
from tests.e2e.browser import page as page

pytestmark = NEEDS_BROWSER

WIDTHS = """() => {
  const svg = document.querySelector('.icicle');
  const widths = [...svg.querySelectorAll('g')].map((g) => Number(g.dataset.width));
  return [widths.reduce((a, b) => a + b, 0), Number(svg.dataset.held)];
}"""
IS_TREE_DRAWN = "document.querySelectorAll('.icicle g').length >= 9"
"""The beginning that 8 prompts share, and what differs."""


def test_the_engine_view_shows_the_model(page: Any, address: str):
    page.goto(address)
    page.get_by_role("link", name="Engine").click()
    page.get_by_role("rowheader", name="scripted").wait_for()
    page.get_by_role("cell", name="ready").wait_for()


def test_the_pool_shows_shared_beginnings_and_its_widths_add_up_to_the_ledger(page: Any, address: str):
    page.goto(f"{address}#engine")
    page.get_by_role("button", name="Send 8 prompts").click()
    page.get_by_text("8 answers. Of").wait_for()
    until(page, IS_TREE_DRAWN)  # the replies may be here before the next look at the engine
    drawn, held = page.evaluate(WIDTHS)
    assert drawn == held > 0
    page.get_by_role("img", name="steps in the last").wait_for()
    page.get_by_text("As a table").first.click()
    page.get_by_role("button", name="Read node").first.click()
    page.get_by_text(re.compile(r"Tokens \d+ to \d+")).wait_for()
    page.get_by_role("button", name="Explain: pool").click()
    page.get_by_text("Requests with the same beginning share it").wait_for()


def test_time_is_paused_looked_at_again_and_saved(page: Any, address: str, tmp_path: Path):
    page.goto(f"{address}#engine")
    page.get_by_role("button", name="Send 8 prompts").click()
    page.get_by_text("8 answers. Of").wait_for()
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("slider", name="Moment").fill("0")
    drawn, held = page.evaluate(WIDTHS)
    assert drawn == held
    before = page.get_by_role("group", name="Time").get_by_role("status").inner_text()
    page.get_by_role("button", name="Send 8 prompts").click()
    page.get_by_text("8 answers. Of").wait_for()
    assert page.get_by_role("group", name="Time").get_by_role("status").inner_text() == before
    with page.expect_download() as download:
        page.get_by_role("button", name="Save trace").click()
    download.value.save_as(tmp_path / "trace.json")
    assert '"traceEvents"' in (tmp_path / "trace.json").read_text()
    page.get_by_role("button", name="Go on").click()
    page.get_by_text("(live)").wait_for()


def test_own_requests_are_marked_with_their_chat(context: Any, address: str):
    page = context.new_page()
    page.goto(address)
    say(page, "Write at length.")
    page.get_by_role("log").get_by_text("word word").wait_for()
    page.get_by_role("link", name="Engine").click()
    page.get_by_role("link", name="you · Write at length.").click()
    page.get_by_role("button", name="Stop").click()
