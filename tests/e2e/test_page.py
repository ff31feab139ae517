"""The page in a real browser: Debian's Chromium against the real server on the scripted backend."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium") or ""
WAIT_MS = 10_000
POEM = "Some **bold** words.\n\n```python\nprint(1)\n```\n\n![a](https://evil.example/?q=1)<img src=x onerror=alert(1)>"
SCRIPT = [POEM, {"when": "at length", "text": "word " * 6000}]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed: apt-get install chromium"),
]


@contextmanager
def serving(folder: Path, *options: str) -> Generator[str]:
    script = folder / "script.json"
    script.write_text(json.dumps(SCRIPT))
    command = [sys.executable, "-m", "stoker", "serve", "scripted", "--script", str(script), "--port", "0", *options]
    with subprocess.Popen([*command, "--ctx-size", "65536"], stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            yield process.stderr.readline().split()[-1]
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("page")) as url:
        yield url


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 360, "height": 640})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.hosts = set()
    page.on("request", lambda request: page.hosts.add(request.url.split("/")[2]))
    yield page
    context.close()
    assert not page.problems


def say(page: Any, text: str) -> None:
    page.get_by_role("textbox", name="Message").fill(text)
    page.get_by_role("textbox", name="Message").press("Enter")


def test_an_answer_is_rendered_and_stays_over_a_reload(page: Any, address: str):
    page.goto(address)
    say(page, "Write a poem.")
    log = page.get_by_role("log")
    log.locator("strong", has_text="bold").wait_for()
    log.get_by_role("button", name="Regenerate").wait_for()
    page.reload()
    log.locator("strong", has_text="bold").wait_for()
    log.get_by_text("Write a poem.").wait_for()
    assert page.hosts == {address.split("/")[2]}, "an image of a model must send nothing"
    assert log.locator("img").count() == 0


def test_stop_ends_an_answer_and_keeps_its_text(page: Any, address: str):
    page.goto(address)
    say(page, "Write at length.")
    page.get_by_role("log").get_by_text("word word").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("log").get_by_text("stopped").wait_for()
    assert 0 < page.get_by_label("Model", exact=True).and_(page.locator("article")).inner_text().count("word") < 6000
    page.get_by_role("button", name="Send").wait_for()


def test_an_edited_message_is_answered_anew(page: Any, address: str):
    page.goto(address)
    say(page, "Write a poem.")
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edited message").fill("Another poem.")
    page.get_by_role("button", name="Send again").click()
    page.get_by_role("log").get_by_text("Another poem.").wait_for()
    page.get_by_role("log").get_by_role("button", name="Regenerate").wait_for()
    assert page.get_by_role("log").get_by_text("Write a poem.").count() == 0


def test_the_engine_view_shows_the_model(page: Any, address: str):
    page.goto(address)
    page.get_by_role("link", name="Engine").click()
    page.get_by_role("rowheader", name="scripted").wait_for()
    page.get_by_role("cell", name="ready").wait_for()


def test_a_key_is_asked_for_below_a_path_prefix(page: Any, tmp_path: Path):
    with serving(tmp_path, "--api-key", "secret", "--root-path", "/llm") as url:
        page.goto(f"{url.removesuffix('/llm')}/llm/")
        field = page.get_by_role("dialog").get_by_label("API key")
        field.fill("wrong")
        field.press("Enter")
        page.get_by_text("does not know this key").wait_for()
        field.fill("secret")
        field.press("Enter")
        say(page, "Write a poem.")
        page.get_by_role("log").locator("strong", has_text="bold").wait_for()
