"""What a person does while writing and reading: keys, drafts, files, figures of an answer, paper, small screens."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.page.browser import LONG, NEEDS_BROWSER, answered, long_chat, say, take_in, until

pytestmark = [*NEEDS_BROWSER, LONG]


def test_keys_do_what_their_list_says(page: Any, address: str):
    page.set_viewport_size({"width": 1000, "height": 700})
    page.goto(address)
    field = page.get_by_role("textbox", name="Message")
    field.fill("Write")
    field.press("Shift+Enter")
    field.type("at length.")
    assert field.input_value() == "Write\nat length."
    field.press("Enter")
    log = page.get_by_role("log")
    log.get_by_text("word word").wait_for()
    field.press("Escape")
    log.get_by_text("stopped").wait_for()
    field.press("ArrowUp")
    assert page.get_by_label("Edited text").input_value() == "Write\nat length."
    page.get_by_label("Edited text").press("Escape")
    chats = page.get_by_role("navigation", name="Chats")
    chats.wait_for()
    page.keyboard.press("Control+b")
    chats.wait_for(state="detached")
    page.keyboard.press("Control+.")
    page.get_by_role("img", name="KV pool").wait_for()
    page.keyboard.press("Control+.")
    log.wait_for()
    log.focus()
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keys")
    keys.get_by_text("shows this list").wait_for()
    assert keys.locator("dt").count() == 10
    page.keyboard.press("Escape")
    keys.wait_for(state="detached")


def test_keys_go_from_the_bar_above_to_the_field_and_show_where_they_are(page: Any, address: str):
    page.goto(address)
    say(page, "Write a poem.")
    answered(page)
    page.get_by_role("button", name="Chats", exact=True).focus()
    places = ["header"]
    while places[-1] != "form":
        assert len(places) < 60, places
        page.keyboard.press("Tab")
        place, outline = page.evaluate(FOCUS)
        assert outline == "solid" or place == "form", "the field has a border instead"
        places.append(place)
    assert [place for at, place in enumerate(places) if at == 0 or place != places[at - 1]] == ["header", "div", "form"]


FOCUS = """[document.activeElement.closest('header, nav, .log, form').localName,
  getComputedStyle(document.activeElement).outlineStyle]"""


def test_a_draft_survives_a_reload_and_belongs_to_its_chat(page: Any, address: str):
    page.goto(address)
    field = page.get_by_role("textbox", name="Message")
    say(page, "Write a poem.")
    answered(page)
    field.fill("half a thought")
    page.reload()
    answered(page)
    assert field.input_value() == "half a thought"
    page.keyboard.press("Control+Shift+O")
    assert field.input_value() == ""


PICTURE = """async (how) => {
  const canvas = Object.assign(document.createElement('canvas'), { width: 4000, height: 1000 });
  canvas.getContext('2d').fillRect(0, 0, 2000, 1000);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, 'image/png'));
  const files = new DataTransfer();
  files.items.add(new File([blob], `${how}.png`, { type: 'image/png' }));
  const area = document.querySelector('[aria-label=Message]');
  area.dispatchEvent(how === 'paste'
    ? new ClipboardEvent('paste', { clipboardData: files, bubbles: true, cancelable: true })
    : new DragEvent('drop', { dataTransfer: files, bubbles: true, cancelable: true }));
}"""
SIZE = """async (url) => {
  const image = Object.assign(new Image(), { src: url });
  await image.decode();
  return [image.width, image.height];
}"""


def test_pictures_are_pasted_and_dropped_and_made_smaller(page: Any, address: str):
    page.route("**/props?*", lambda route: route.fulfill(json={"modalities": {"vision": True}}))
    page.goto(address)
    page.get_by_role("textbox", name="Message").wait_for()
    until(page, "import('./ui/state/server.js').then((server) => server.props.value?.modalities?.vision === true)")
    for how in ("paste", "drop"):
        page.evaluate(PICTURE, how)
        page.get_by_role("img", name=f"{how}.png").wait_for()
    page.get_by_role("button", name="Remove drop.png").click()
    with page.expect_request("**/v1/chat/completions") as asked:
        say(page, "What is it?")
    text, image = asked.value.post_data_json["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is it?"}
    assert page.evaluate(SIZE, image["image_url"]["url"]) == [2048, 512]


CHUNKS: list[dict[str, Any]] = [
    {
        "choices": [{"index": 0, "delta": {"content": "well"}, "finish_reason": "length"}],
        "timings": {
            "cache_n": 20,
            "prompt_n": 10,
            "predicted_n": 7,
            "predicted_per_second": 12.34,
            "prompt_per_second": 99,
            "draft_n": 5,
            "draft_n_accepted": 3,
        },
    }
]
ONE = [{**CHUNKS[0], "timings": {**CHUNKS[0]["timings"], "predicted_n": 1, "draft_n": 0, "predicted_per_second": 1e6}}]
MODEL = {"id": "one", "status": {"value": "loaded"}, "capabilities": ["completion"], "max_model_len": 1000}


def streamed(chunks: list[dict[str, Any]]) -> str:
    return "".join(f"data: {json.dumps({'id': 'chatcmpl-x', **chunk})}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def test_an_answer_has_its_figures_below_it(page: Any, address: str):
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": [MODEL]}))
    replies = iter([CHUNKS, ONE])
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=streamed(next(replies)), content_type="text/event-stream"),
    )
    page.goto(address)
    say(page, "Well?")
    answered(page)
    numbers = page.locator("article.assistant .numbers")
    texts = numbers.locator("> span").all_inner_texts()
    assert re.fullmatch(r"first token [\d.]+ s", texts.pop(4))
    assert texts == [
        "one",
        "12.3 tok/s",
        "7 tokens",
        "prompt 30, 20 cached",
        "drafts 3/5 kept",
        "cut at the token limit",
    ]
    meter = numbers.get_by_role("meter", name="Context used")
    assert (meter.get_attribute("value"), meter.get_attribute("max")) == ("37", "1000")
    assert numbers.get_attribute("title") == "Request chatcmpl-x", "the id in the log of the server"
    page.get_by_role("button", name="Continue").wait_for()
    say(page, "And?")
    page.locator("article.assistant").nth(1).get_by_text("1 token", exact=True).wait_for()
    assert "tok/s" not in page.locator("article.assistant").nth(1).inner_text(), "one token has no speed"


SLOW_PROMPT = """
  const real = window.fetch;
  window.fetch = (url, options) => {
    if (!String(url).endsWith('chat/completions')) return real(url, options);
    window.asked = JSON.parse(options.body);
    const progress = { total: 1000, cache: 200, processed: 400, time_ms: 1000 };
    const chunk = JSON.stringify({ id: 'x', choices: [{ index: 0, delta: {} }], prompt_progress: progress });
    const start = (stream) => stream.enqueue(new TextEncoder().encode(`data: ${chunk}\\n\\n`));
    return Promise.resolve(new Response(new ReadableStream({ start })));
  };
"""


def test_a_prompt_that_is_computed_shows_how_far_it_is(page: Any, address: str):
    page.add_init_script(SLOW_PROMPT)
    page.goto(address)
    say(page, "Read this.")
    page.get_by_text("Reading the prompt: 400 of 1,000 tokens, 200 from the cache, about 3 s left").wait_for()
    bar = page.get_by_role("progressbar", name="Prompt computed")
    assert (bar.get_attribute("value"), bar.get_attribute("max")) == ("400", "1000")
    assert page.evaluate("asked.return_progress && asked.timings_per_token")


DOCUMENT = r"""Inline \(a^2\) and $b_1$, but $5 and 6$7 are prices.

\[\frac{1}{2}\]

```python
x = 1
```

| a | b |
|---|---|
| 1 | 2 |
"""


def test_a_document_is_drawn_its_code_wrapped_and_its_chat_saved_as_markdown(page: Any, address: str, tmp_path: Path):
    page.goto(address)
    nodes = {
        "a": {"id": "a", "parent": "", "role": "user", "content": "Show it."},
        "b": {"id": "b", "parent": "a", "role": "assistant", "content": DOCUMENT, "model": "one"},
    }
    take_in(page, [{"title": "Shown", "updated": 1, "system": "Be.", "nodes": nodes, "leaf": "b"}])
    log = page.get_by_role("log")
    log.locator("math[display=block] mfrac").wait_for()
    assert log.locator("math").count() == 3
    assert log.locator("td").all_inner_texts() == ["1", "2"]
    log.get_by_role("button", name="Wrap").click()
    assert page.evaluate("getComputedStyle(document.querySelector('.log pre')).whiteSpace") == "pre-wrap"
    page.keyboard.press("Control+b")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as Markdown").click()
    download.value.save_as(tmp_path / "chat.md")
    assert (tmp_path / "chat.md").read_text() == (
        f"# Shown\n\n> Be.\n\n## You\n\nShow it.\n\n## Model (one)\n\n{DOCUMENT}\n"
    )


def test_what_is_not_closed_yet_is_shown_as_it_stands(page: Any, address: str):
    page.goto(address)
    unclosed = {"code": "Look:\n\n```python\nx = 1", "table": "| a | b |", "formula": "so $x", "displayed": "$$\\frac"}
    nodes = {
        name: {"id": name, "parent": parent, "role": "assistant", "content": text}
        for (name, text), parent in zip(unclosed.items(), ["", *unclosed], strict=False)
    }
    take_in(page, [{"title": "Open", "updated": 1, "nodes": nodes, "leaf": "displayed"}])
    log = page.get_by_role("log")
    log.get_by_text("$$\\frac").wait_for()
    assert log.locator("pre").inner_text() == "x = 1"
    assert log.locator("math, table, pre span").count() == 0
    log.get_by_text("so $x").wait_for()


def test_a_copied_command_asks_the_server_the_same(page: Any, address: str):
    page.goto(address)
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    say(page, "Write a 'quoted' poem.")
    answered(page)
    page.get_by_role("button", name="Settings").click()
    page.get_by_text("Tools and request").click()
    page.get_by_role("button", name="Copy as curl").click()
    until(page, "window.copied !== undefined")
    command = ["bash", "-c", page.evaluate("copied").replace("curl ", "curl -sS ", 1)]
    reply = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
    assert "**bold**" in reply["choices"][0]["message"]["content"]


def test_the_browser_is_asked_once_to_keep_the_conversations(page: Any, address: str):
    page.add_init_script(
        "window.asked = 0; navigator.storage.persist = async () => { window.asked += 1; return true; }"
    )
    page.goto(address)
    page.get_by_role("textbox", name="Message").wait_for()
    assert page.evaluate("asked") == 0, "there is nothing to keep"
    for text in ("Write a poem.", "And another."):
        say(page, text)
        page.get_by_role("log").get_by_text(text).wait_for()
        answered(page)
    assert page.evaluate("asked") == 1


def test_colors_are_those_of_the_system_until_a_person_switches(page: Any, address: str):
    page.emulate_media(color_scheme="dark")
    page.goto(address)
    background = "getComputedStyle(document.body).backgroundColor"
    theme = "document.documentElement.dataset.theme"
    page.get_by_role("button", name="Light colors").click()
    assert page.evaluate(theme) == "light"
    light = page.evaluate(background)
    page.reload()
    page.get_by_role("button", name="Dark colors").click()
    assert page.evaluate(background) != light


@pytest.mark.parametrize("width", [320, 3840])
def test_the_page_fits_small_and_large_screens(page: Any, address: str, width: int):
    page.set_viewport_size({"width": width, "height": 2160 if width > 1000 else 500})
    page.goto(address)
    say(page, "Write a poem.")
    answered(page)
    page.get_by_role("button", name="Settings").click()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("link", name="Engine").click()
    page.get_by_role("img", name="KV pool").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight"), "the parts scroll, not the page"


def test_a_printed_conversation_is_whole_and_has_no_controls(page: Any, address: str):
    page.goto(address)
    take_in(page, [long_chat(40, "message {}.\n\nMore of it.")])
    page.get_by_role("log").get_by_text("message 39.").wait_for()
    page.emulate_media(media="print")
    for part in (".top", ".composer", "footer"):
        assert not page.locator(part).first.is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.log')).overflow") == "visible"
    assert page.evaluate("document.documentElement.scrollHeight > 2 * innerHeight")


def test_nothing_moves_for_those_who_do_not_want_it(page: Any, address: str):
    moving = "getComputedStyle(document.querySelector('.pulse')).animationName"
    page.add_init_script(SLOW_PROMPT.replace("processed: 400", "processed: 1000"))
    page.goto(address)
    say(page, "Read this.")
    page.get_by_text("Waiting for the first token").wait_for()
    assert page.evaluate(moving) == "pulse"
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(moving) == "none"


def test_a_model_that_is_loaded_is_told_with_how_far_it_is(page: Any, address: str):
    loading = {"status": "loading", "models": [{"id": "one", "state": "loading", "progress": 0.42}]}
    page.route("**/health", lambda route: route.fulfill(status=503, json=loading))
    page.goto(address)
    page.get_by_role("alert").get_by_text("The server is not ready: one is loading (42 %).").wait_for()
    page.unroute("**/health")
    page.get_by_role("alert").wait_for(state="detached")


HURRIED = """
  const real = window.setTimeout;
  window.waits = [];
  window.setTimeout = (action, ms, ...rest) => {
    if (ms >= 1000) window.waits.push(ms);
    return real(action, Math.min(ms, 20), ...rest);
  };
"""


def test_a_server_that_is_away_is_tried_less_and_less_often(page: Any, address: str):
    page.add_init_script(HURRIED)
    page.route("**/health", lambda route: route.abort())
    page.goto(address)
    page.get_by_text("The server cannot be reached").wait_for()
    until(page, "waits.filter((ms) => ms === 10000).length > 1")
    waits = page.evaluate("waits")
    assert [ms for ms in waits if ms in (1500, 2250, 3375)] == [1500, 2250, 3375]
    page.unroute("**/health")
    page.get_by_text("The server cannot be reached").wait_for(state="detached")
