"""What the page keeps: messages and files in the browser, and conversations on the server if it is told to."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

from tests.e2e.page.browser import LONG, NEEDS_BROWSER, answered, long_chat, say, serving, take_in, until
from tests.ports import free_port

pytestmark = [*NEEDS_BROWSER, LONG]

PNG = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
WRITES = """() => {
  window.writes = [];
  const put = IDBObjectStore.prototype.put;
  IDBObjectStore.prototype.put = function (value) {
    window.writes.push([this.name, value.id]);
    return put.call(this, value);
  };
}"""


def test_only_what_has_changed_is_written(page: Any, address: str):
    page.goto(address)
    chat = long_chat(50, "{}")
    take_in(page, [chat])
    page.evaluate(WRITES)
    say(page, "Write a poem.")
    answered(page)
    until(page, "window.writes.length > 0")
    messages = {name for store, name in page.evaluate("window.writes") if store == "messages"}
    assert len(messages) == 2, "the question and the answer"
    assert not messages & chat["nodes"].keys()


def test_a_file_is_stored_once_and_comes_back(page: Any, address: str):
    page.route("**/props?*", lambda route: route.fulfill(json={"modalities": {"vision": True}}))
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body="data: [DONE]\n\n", content_type="text/event-stream"),
    )
    page.goto(address)
    page.get_by_role("textbox", name="Message").wait_for()
    until(page, "import('./ui/state/server.js').then((server) => server.props.value?.modalities?.vision === true)")
    page.evaluate(WRITES)
    page.get_by_label("Attach files").set_input_files({"name": "a.png", "mimeType": "image/png", "buffer": PNG})
    page.get_by_role("img", name="a.png").wait_for()
    for text in ("One.", "Two."):
        say(page, text)
        page.get_by_role("log").get_by_text(text).wait_for()
        answered(page)
    page.get_by_role("button", name="Fork").last.click()
    until(page, "window.writes.filter(([store]) => store === 'chats').length > 4")
    assert [store for store, _ in page.evaluate("window.writes")].count("blobs") == 1
    page.reload()
    page.get_by_role("log").get_by_role("img", name="a.png").wait_for()


def test_conversations_of_an_older_page_are_still_there(page: Any, address: str):
    """It had one store, with each conversation in one piece."""
    page.route("**/ui/app.js", lambda route: route.fulfill(body="", content_type="text/javascript"))
    page.goto(address)
    node = {"id": "n", "parent": "", "role": "user", "content": "from before"}
    chat = {"id": "old", "title": "Old", "updated": 1, "system": "", "sampling": {}, "nodes": {"n": node}, "leaf": "n"}
    page.evaluate(
        """(chat) => new Promise((resolve) => {
          const request = indexedDB.open('stoker', 1);
          request.onupgradeneeded = () => request.result.createObjectStore('chats', { keyPath: 'id' });
          request.onsuccess = () => {
            const transaction = request.result.transaction('chats', 'readwrite');
            transaction.objectStore('chats').put(chat);
            transaction.oncomplete = () => { request.result.close(); resolve(); };
          };
        })""",
        chat,
    )
    page.unroute("**/ui/app.js")
    page.reload()
    page.get_by_role("log").get_by_text("from before").wait_for()
    say(page, "Write a poem.")
    answered(page)
    page.reload()
    page.get_by_role("log").get_by_text("from before").wait_for()
    page.get_by_role("log").locator("strong", has_text="bold").wait_for()


def test_conversations_on_the_server_are_there_in_another_browser_and_for_this_key_only(browser: Any, tmp_path: Path):
    def opened(key: str) -> Any:
        context = browser.new_context(viewport={"width": 1000, "height": 700})
        page = context.new_page()
        page.set_default_timeout(40_000)
        page.goto(url)
        page.get_by_label("API key").fill(key)
        page.get_by_label("API key").press("Enter")
        page.get_by_role("textbox", name="Message").wait_for()
        return page

    folder = tmp_path / "chats"
    with serving(tmp_path, "--api-key", "ann:one,bob:two", "--ui-store", str(folder)) as url:
        first = opened("one")
        first.get_by_text("Conversations are kept on the server").wait_for()
        with first.expect_response(lambda reply: reply.request.method == "PUT"):
            say(first, "Write a poem.")
            answered(first)
        [file] = folder.glob("*/*.json")
        assert json.loads(file.read_bytes())["title"] == "Write a poem."
        second = opened("one")
        second.get_by_role("log").locator("strong", has_text="bold").wait_for()
        other = opened("two")
        other.get_by_text("Conversations are kept on the server").wait_for()
        assert other.get_by_role("listitem").get_by_text("Write a poem.").count() == 0
        second.on("dialog", lambda dialog: dialog.accept())
        with second.expect_response(lambda reply: reply.request.method == "DELETE"):
            second.get_by_role("button", name="Delete Write a poem.").click()
        first.reload()
        first.get_by_role("button", name="Write a poem.", exact=True).wait_for(state="detached")
        assert not list(folder.glob("*/*.json"))


def test_the_page_opens_while_the_server_is_away(page: Any, tmp_path: Path):
    port = free_port()
    with serving(tmp_path, "--root-path", "/llm", port=port, is_killed=True) as url:
        page.goto(f"{url.removesuffix('/llm')}/llm/")
        say(page, "Write a poem.")
        answered(page)
        page.evaluate("import('./ui/store/offline.js').then(({ keepPage }) => keepPage())")
        page.evaluate("navigator.serviceWorker.ready.then(() => true)")
    page.reload()
    page.get_by_role("log").locator("strong", has_text="bold").wait_for()
    page.get_by_text("The server cannot be reached").wait_for()
    with serving(tmp_path, "--root-path", "/llm", port=port):
        page.get_by_text("The server cannot be reached").wait_for(state="detached")
        say(page, "Write a poem.")
        answered(page)
