"""The engine view of the page in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.e2e.page.browser import LONG, NEEDS_BROWSER, answered, opened_tokens, say, serving, until

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


@LONG
def test_own_requests_are_marked_with_their_chat(context: Any, address: str):
    page = context.new_page()
    page.goto(address)
    say(page, "Write at length.")
    page.get_by_role("log").get_by_text("word word").wait_for()
    page.get_by_role("link", name="Engine").click()
    page.get_by_role("link", name="you · Write at length.").click()
    page.get_by_role("button", name="Stop").click()


@LONG
def test_each_token_is_linked_to_the_step_that_made_it(page: Any, address: str):
    page.goto(f"{address}#engine")
    page.get_by_role("img", name="KV pool").wait_for()
    page.get_by_role("link", name="Engine").click()
    say(page, "Write a poem.")
    answered(page)
    dialog, tokens = opened_tokens(page)
    dialog.get_by_label("Color by").select_option("step")
    assert dialog.locator("button.token.m1").count() > 5
    tokens.nth(2).click()
    dialog.get_by_text(re.compile(r"Made in step \d+")).wait_for()
    dialog.get_by_role("link", name="Show the step").click()
    page.get_by_role("group", name="Time").wait_for()
    until(page, "document.querySelectorAll('.bar.chosen').length === 1")
    page.get_by_role("region", name="Steps").get_by_text("As a table").click()
    assert page.get_by_role("region", name="Steps").get_by_role("row").count() == 21, "the newest, and a head"


@LONG
def test_a_long_prompt_beside_a_stream_is_shown_with_the_longest_gap(page: Any, address: str):
    page.goto(f"{address}#engine")
    page.get_by_role("button", name="Send a long prompt").click()
    page.get_by_text(re.compile(r"the stream went on: .* ms at most")).wait_for()


@LONG
def test_the_engine_stands_beside_the_chat(browser: Any, address: str):
    context = browser.new_context(viewport={"width": 1400, "height": 800})
    page = context.new_page()
    page.goto(f"{address}#engine")
    page.get_by_role("button", name="Beside the chat").click()
    say(page, "Write for a while.")
    page.get_by_role("link", name="you · Write for a while.").wait_for()
    assert page.get_by_role("log").is_visible()
    context.close()


UNLOAD = """{method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{"model": "scripted"}'}"""


@LONG
def test_models_that_come_and_go_are_moments(page: Any, tmp_path: Path):
    with serving(tmp_path) as address:
        page.goto(f"{address}#engine")
        page.get_by_role("img", name="KV pool").wait_for()
        page.evaluate(f"fetch('models/unload', {UNLOAD})")
        page.get_by_role("alert").get_by_text("unloaded").wait_for()
        page.get_by_role("button", name="Models").click()
        page.get_by_role("button", name="Load scripted", exact=True).click()
        page.get_by_role("button", name="Unload scripted").wait_for()
        page.get_by_role("button", name="Close").click()
        moments = page.get_by_role("region", name="Moments")
        moments.get_by_text("unloaded", exact=True).wait_for()
        moments.get_by_text("loaded", exact=True).wait_for()


@LONG
def test_two_tabs_share_one_stream_and_the_second_goes_on_when_the_first_is_closed(context: Any, address: str):
    streams: list[Any] = []
    context.on("request", lambda request: streams.append(request) if "engine/events" in request.url else None)
    first, second = context.new_page(), context.new_page()
    for tab in (first, second):
        tab.goto(f"{address}#engine")
        tab.get_by_role("img", name="KV pool").wait_for()
    assert len(streams) == 1
    first.get_by_role("button", name="Send 8 prompts").click()
    until(second, IS_TREE_DRAWN)
    first.close()
    until(second, "import('./ui/engine/stream.js').then((stream) => stream.isLeading.value)")
    second.get_by_role("button", name="Send 8 prompts").click()
    second.get_by_text("8 answers. Of").wait_for()
    assert len(streams) == 2
