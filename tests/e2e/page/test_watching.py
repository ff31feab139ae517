"""The engine view in detail: steps that are pointed at, replicas, models without an engine, tabs that are hidden."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.e2e.page.browser import LONG, NEEDS_BROWSER, answered, opened_tokens, say, serving, until
from tests.e2e.page.test_engine import IS_TREE_DRAWN

pytestmark = [*NEEDS_BROWSER, LONG]


def test_a_step_tells_who_was_in_it_and_moments_are_lines(page: Any, address: str, tmp_path: Path):
    page.goto(f"{address}#engine")
    page.get_by_role("img", name="KV pool").wait_for()
    page.get_by_role("button", name="Send 8 prompts").click()
    page.get_by_text("8 answers. Of").wait_for()
    page.get_by_role("button", name="Pause").click()
    for kind in ("arrived", "first", "finished"):
        assert page.locator(f".steps line.moment.{kind}").count() >= 8, kind
    page.locator(".steps .bar").last.dispatch_event("pointerenter")
    words = page.get_by_role("region", name="Steps").locator(".hint").inner_text()
    assert re.match(r"Step [\d,]+: [\d.]+ ms \(forward [\d.]+ ms, sampling [\d.]+ ms\), planned in [\d.]+ ms\.", words)
    assert re.search(r"slot \d+( \(cmpl-\w+\))?: \d+", words), "the requests in the batch, with their parts"
    with page.expect_download() as download:
        page.get_by_role("button", name="Save JSON").click()
    download.value.save_as(tmp_path / "state.json")
    state = json.loads((tmp_path / "state.json").read_text())
    (engine,) = state["engines"]
    assert sum(node["n"] for node in engine["tree"]) == engine["kv"]["held"]


def test_each_replica_has_a_pool_of_its_own(page: Any, tmp_path: Path):
    with serving(tmp_path, "--replicas", "2") as address:
        page.goto(f"{address}#engine")
        for replica in (0, 1):
            page.get_by_role("img", name=f"KV pool of replica {replica}").wait_for()
        page.get_by_role("button", name="Send 8 prompts").click()
        page.get_by_text("8 answers. Of").wait_for()


def test_a_model_without_an_engine_shows_its_slots(page: Any, address: str):
    why = {"error": {"message": "llama-server has no answer to Look"}}
    page.route("**/engine/events?*", lambda route: route.fulfill(status=400, json=why))
    slots = [{"id": 0, "is_processing": True, "n_tokens": 1234, "n_decoded": 5}, {"id": 1, "n_tokens": 0}]
    page.route("**/slots", lambda route: route.fulfill(json=slots))
    page.goto(f"{address}#engine")
    page.get_by_role("alert").get_by_text("llama-server has no answer to Look").wait_for()
    page.get_by_text("Sequences: 1 of 2 slots hold tokens").wait_for()
    assert page.locator(".engine tbody tr").last.locator("td").all_inner_texts() == ["running", "1,234", "5"]


def test_a_tab_that_nobody_sees_follows_nothing_after_a_while(page: Any, address: str):
    page.clock.install()
    page.goto(f"{address}#engine")
    page.get_by_role("img", name="KV pool").wait_for()
    page.evaluate("Object.defineProperty(document, 'hidden', { get: () => window.isHidden, configurable: true })")
    change = "window.isHidden = {}; document.dispatchEvent(new Event('visibilitychange'))"
    page.evaluate(change.format("true"))
    page.clock.fast_forward(20_000)
    page.evaluate(change.format("false"))  # it was away for a moment only
    page.evaluate(change.format("true"))
    with page.expect_event("requestfailed", lambda request: "engine/events" in request.url):
        page.clock.fast_forward(31_000)
    with page.expect_request("**/engine/events?*"):
        page.evaluate(change.format("false"))
    page.get_by_role("button", name="Send 8 prompts").click()
    until(page, IS_TREE_DRAWN)


def test_tokens_are_colored_by_what_a_person_asks_for(page: Any, address: str):
    page.goto(address)
    say(page, "Write a poem.")
    answered(page)
    dialog, tokens = opened_tokens(page)
    colors = dialog.get_by_label("Color by")
    assert colors.locator("option").all_inner_texts() == ["probability", "entropy", "step", "drafted"]
    for name, kind in (("probability", "l"), ("entropy", "l"), ("step", "m"), ("drafted", "m")):
        colors.select_option(name)
        until(page, f"/^token {kind}[0-5]/.test(document.querySelector('button.token').className)")
    tokens.nth(4).hover()
    assert dialog.locator(".lab tbody tr").count() > 1
    dialog.get_by_label("Top k").fill("2")
    chances = dialog.locator(".lab td:nth-child(3)").all_inner_texts()
    assert sum(not chance.startswith("0.0 %") for chance in chances) <= 2


def test_the_engine_view_says_what_each_part_means(page: Any, address: str):
    page.goto(f"{address}#engine")
    page.get_by_role("img", name="KV pool").wait_for()
    questions = page.get_by_role("button", name="Explain:")
    names = [question.get_attribute("aria-label") for question in questions.all()]
    assert len(names) == 7
    for name in names:
        page.get_by_role("button", name=name, exact=True).click()
    texts = page.locator(".explanation").all_inner_texts()
    assert len(texts) == 7
    root = Path(__file__).parents[3]
    for text in texts:
        page_of_docs = re.search(r"More in (docs/\w+\.md)\.", text)
        assert page_of_docs is not None
        assert (root / page_of_docs[1]).is_file()
