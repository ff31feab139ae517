"""The page against replies that overlap or come late, damaged files, and keys that change."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.page.browser import LONG, NEEDS_BROWSER, answered, say, serving

pytestmark = [*NEEDS_BROWSER, LONG]


def kept_reply(page: Any, pattern: str, ask: Callable[[], Any] = lambda: None) -> tuple[Any, Any]:
    """The route of the next request to these addresses, whose reply is kept from the page, and this reply."""
    kept: list[Any] = []
    is_first = count()

    def keep(route: Any) -> None:
        if next(is_first):
            route.continue_()
        else:
            kept.append((route, route.fetch()))

    page.route(pattern, keep)
    ask()
    for _ in range(1200):
        if kept:
            return kept[0]
        page.wait_for_timeout(50)
    pytest.fail(f"nothing was asked of {pattern}")


def test_a_late_reply_does_not_show_a_model_as_it_was_before(page: Any, tmp_path: Path):
    with serving(tmp_path) as address:
        page.goto(address)
        page.get_by_role("button", name="Models").click()
        page.get_by_role("button", name="Unload scripted").wait_for()
        route, reply = kept_reply(page, "**/v1/models")
        page.get_by_role("button", name="Unload scripted").click()
        page.get_by_role("button", name="Load scripted", exact=True).wait_for()
        page.evaluate("window.states = []; window.list = document.querySelector('.models')")
        watch = "new MutationObserver(() => states.push(list.innerText))"
        page.evaluate(f"{watch}.observe(list, {{subtree: true, childList: true}})")
        with page.expect_response("**/v1/models"):
            route.fulfill(response=reply)
        with page.expect_response("**/v1/models"):
            pass  # the page has dealt with the late one
        assert not any("Unload" in state for state in page.evaluate("states"))


def test_the_defaults_of_a_model_that_was_left_are_not_shown_for_the_next_one(page: Any, address: str):
    late: list[Any] = []
    page.route("**/props?model=slow", lambda route: late.append(route))
    page.route("**/props?model=quick", lambda route: route.fulfill(json={"model": "quick"}))
    page.goto(address)
    page.get_by_role("textbox", name="Message").wait_for()
    page.evaluate("import('./ui/state/server.js').then((server) => { window.server = server; })")
    with page.expect_request("**/props?model=slow"):
        page.evaluate("window.first = server.loadProps('slow'); undefined")
    page.evaluate("server.loadProps('quick')")
    [route] = late
    route.fulfill(json={"model": "slow"})
    page.evaluate("window.first")
    assert page.evaluate("server.props.value") == {"model": "quick"}


def test_a_request_that_was_sent_with_the_old_key_uses_the_new_one_and_does_not_ask_again(page: Any, tmp_path: Path):
    with serving(tmp_path, "--api-key", "secret") as url:
        page.goto(url)
        field = page.get_by_role("dialog").get_by_label("API key")
        field.wait_for()
        ask = "import('./ui/wire/api.js').then((api) => { window.reply = api.getJson('slots'); })"
        route, reply = kept_reply(page, "**/slots", lambda: page.evaluate(ask))
        field.fill("secret")
        field.press("Enter")
        page.get_by_role("textbox", name="Message").wait_for()
        assert reply.status == 401
        route.fulfill(response=reply)
        assert isinstance(page.evaluate("window.reply"), list)
        assert page.get_by_role("dialog").count() == 0


def test_the_question_for_the_key_can_be_put_off(page: Any, tmp_path: Path):
    with serving(tmp_path, "--api-key", "secret") as url:
        page.goto(url)
        page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        page.get_by_text("The server needs an API key.").wait_for()
        with page.expect_response("**/health"):
            page.evaluate("dispatchEvent(new Event('online'))")
        assert page.get_by_role("dialog").count() == 0
        page.get_by_role("button", name="Enter the API key").click()
        page.get_by_role("dialog").get_by_label("API key").wait_for()


DAMAGED: dict[str, tuple[Any, list[str]]] = {
    "circle": ({"a": {"role": "user", "parent": "b", "content": "x"}, "b": {"role": "user", "parent": "a"}}, []),
    "no parent": ({"a": {"role": "user", "parent": "gone", "content": "x"}}, ["x"]),
    "no text": ({"a": {"role": "assistant", "content": None, "stats": {"speed": "y"}, "tool_calls": [None]}}, [""]),
    "no message": ({"a": None, "b": 3, "c": {"role": "user", "content": {"text": "x"}}}, ["[object Object]"]),
    "itself": ({"a": {"role": "user", "parent": "a", "content": "x"}}, []),
    "a text": ("abc", []),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_of_chats_harms_nothing(page: Any, address: str, name: str):
    nodes, kept = DAMAGED[name]
    page.goto(address)
    page.get_by_role("button", name="Chats", exact=True).click()
    chat = {"title": 1, "updated": "then", "sampling": None, "system": ["x"], "nodes": nodes, "leaf": 7}
    buffer = json.dumps({"stoker": 1, "chats": [chat, None, "x"]}).encode()
    picker = page.get_by_label("Import chats")
    picker.set_input_files({"name": "chats.json", "mimeType": "application/json", "buffer": buffer})
    page.get_by_text("1 chat was imported." if kept else "There is no conversation in this file.").wait_for()
    page.reload()
    page.get_by_role("textbox", name="Message").wait_for()
    assert page.locator("article .text").all_inner_texts() == kept
    say(page, "Write a poem.")
    answered(page)
