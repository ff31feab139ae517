"""The chat of the page in a real browser."""

from __future__ import annotations

import json
from ast import literal_eval
from base64 import b64encode
from pathlib import Path
from typing import Any

from tests.e2e.page.browser import LONG, NEEDS_BROWSER, answered, opened_tokens, say, serving, take_in, until
from tests.ports import free_port

pytestmark = NEEDS_BROWSER


def chats(page: Any) -> Any:
    """Opens the list of chats, which a phone hides."""
    if not page.get_by_role("navigation", name="Chats").is_visible():
        page.get_by_role("button", name="Chats", exact=True).click()
    return page.get_by_role("navigation", name="Chats")


def test_an_answer_is_rendered_and_stays_over_a_reload(page: Any, address: str):
    page.goto(address)
    say(page, "Write a poem.")
    log = page.get_by_role("log")
    log.locator("strong", has_text="bold").wait_for()
    answered(page)
    page.reload()
    log.locator("strong", has_text="bold").wait_for()
    log.get_by_text("Write a poem.").wait_for()
    assert log.locator("img").count() == 0, "an image of a model must send nothing"


def test_code_is_colored_and_formulas_are_mathml(page: Any, address: str):
    page.goto(address)
    say(page, "Write a poem.")
    answered(page)
    log = page.get_by_role("log")
    log.locator("pre .hljs-built_in", has_text="print").wait_for()
    log.locator("math msup").wait_for()
    log.locator("math[display=block]").wait_for()
    assert log.locator("math").count() == 2, "prices are no formulas"
    log.get_by_text("for $5 or $6.").wait_for()
    assert log.locator("pre").inner_text() == "print(1)", "colors do not change the code"
    with page.expect_download() as download:
        log.get_by_role("button", name="Save code").click()
    assert download.value.suggested_filename == "code.py"


@LONG
def test_models_are_loaded_and_unloaded_from_the_page(page: Any, tmp_path: Path):
    with serving(tmp_path) as address:
        page.goto(address)
        page.get_by_role("button", name="Models").click()
        page.get_by_role("button", name="Unload scripted").click()
        page.get_by_role("button", name="Load scripted", exact=True).click()
        page.get_by_role("button", name="Unload scripted").wait_for()
        page.get_by_label("Download a model").fill("no/such:thing")
        page.get_by_role("button", name="Download", exact=True).click()
        page.get_by_role("status").get_by_text("no/such").wait_for()
        page.get_by_role("button", name="Close").click()
        say(page, "Write a poem.")
        answered(page)


def test_stop_ends_an_answer_and_keeps_its_text(page: Any, address: str):
    page.goto(address)
    say(page, "Write at length.")
    page.get_by_role("log").get_by_text("word word").wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("log").get_by_text("stopped").wait_for()
    assert 0 < page.get_by_label("Model", exact=True).and_(page.locator("article")).inner_text().count("word") < 6000
    page.get_by_role("button", name="Send").wait_for()
    page.get_by_role("button", name="Continue").wait_for()


def test_versions_of_messages_are_siblings(page: Any, address: str):
    page.goto(address)
    log = page.get_by_role("log")
    say(page, "Write a poem.")
    answered(page)
    log.get_by_label("You").get_by_role("button", name="Edit").click()
    page.get_by_label("Edited text").fill("Another poem.")
    page.get_by_role("button", name="Send again").click()
    log.get_by_text("Another poem.").wait_for()
    answered(page)
    log.get_by_text("2/2").wait_for()
    assert log.get_by_text("Write a poem.").count() == 0
    page.keyboard.press("Alt+ArrowLeft")
    log.get_by_text("Write a poem.").wait_for()
    log.get_by_role("button", name="Regenerate").click()
    log.get_by_label("Model").get_by_text("2/2").wait_for()
    answered(page)
    log.get_by_label("Model").get_by_role("button", name="Previous version").click()
    log.get_by_label("Model").get_by_text("1/2").wait_for()
    page.once("dialog", lambda dialog: dialog.accept())
    log.get_by_label("Model").get_by_role("button", name="Delete").click()
    log.get_by_label("Model").get_by_text("1/2").wait_for(state="detached")


def test_a_stream_goes_on_after_a_reload(page: Any, address: str):
    page.goto(address)
    say(page, "Write at length.")
    page.get_by_role("log").get_by_text("word word").wait_for()
    page.reload()
    page.get_by_role("log").get_by_text("word word").wait_for()
    page.get_by_role("button", name="Stop").wait_for()
    size = page.get_by_role("log").inner_text().count("word")
    until(page, f"document.querySelector('[role=log]').innerText.split('word').length > {size + 20}")
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("log").get_by_text("stopped").wait_for()


def test_several_answers_stand_side_by_side_and_one_is_used(page: Any, address: str):
    page.goto(address)
    page.get_by_label("Answers").select_option("3")
    say(page, "Write a poem.")
    page.get_by_role("group", name="3 answers").wait_for()
    page.get_by_role("button", name="Use answer 2").click()
    page.get_by_role("log").get_by_label("Model").get_by_text("2/3").wait_for()
    assert page.get_by_role("log").get_by_label("Model").count() == 1


def test_chats_are_found_exported_and_imported(page: Any, address: str, tmp_path: Path):
    page.goto(address)
    say(page, "A rare word: zymurgy.")
    answered(page)
    page.keyboard.press("Control+Shift+O")
    say(page, "Something else.")
    answered(page)
    page.keyboard.press("Control+k")
    search = page.get_by_role("searchbox", name="Search chats")
    search.fill("ZYMURGY")
    listed = page.get_by_role("navigation", name="Chats").get_by_role("listitem")
    until(page, "document.querySelectorAll('nav li').length === 1")
    search.fill("")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    download.value.save_as(tmp_path / "chats.json")
    before = json.loads((tmp_path / "chats.json").read_text())
    assert sorted(chat["title"] for chat in before["chats"]) == ["A rare word: zymurgy.", "Something else."]
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete A rare word: zymurgy.").click()
    page.get_by_role("button", name="Delete Something else.").click()
    page.get_by_label("Import chats").set_input_files(tmp_path / "chats.json")
    page.get_by_text("2 chats were imported.").wait_for()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    download.value.save_as(tmp_path / "again.json")
    after = json.loads((tmp_path / "again.json").read_text())
    assert [chat["nodes"] for chat in after["chats"]] == [chat["nodes"] for chat in before["chats"]]
    listed.get_by_role("button", name="A rare word: zymurgy.", exact=True).click()
    chats(page).get_by_role("button", name="Save as Markdown").wait_for()
    (tmp_path / "bad.json").write_text("{}")
    page.get_by_label("Import chats").set_input_files(tmp_path / "bad.json")
    page.get_by_text("There is no conversation in this file.").wait_for()


OTHERS: dict[str, Any] = {
    "llama-server": {
        "conv": {"id": "c", "name": "From llama-server", "currNode": "3"},
        "messages": [
            {"id": "1", "type": "root", "parent": None, "role": "system", "content": ""},
            {"id": "2", "type": "text", "parent": "1", "role": "user", "content": "hello"},
            {"id": "3", "type": "text", "parent": "2", "role": "assistant", "content": "world"},
        ],
    },
    "Open WebUI": [
        {
            "title": "From Open WebUI",
            "chat": {
                "history": {
                    "currentId": "b",
                    "messages": {
                        "a": {"id": "a", "parentId": None, "role": "user", "content": "hello"},
                        "b": {"id": "b", "parentId": "a", "role": "assistant", "content": "world"},
                    },
                }
            },
        }
    ],
    "OpenAI": [
        {"role": "system", "content": "Be."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [{"type": "text", "text": "world"}]},
    ],
}


def test_chats_of_other_programs_can_be_read(page: Any, address: str):
    page.goto(address)
    read = "async (text) => (await import('./ui/store/transfer.js')).imported(text)"
    for value in OTHERS.values():
        (chat,) = page.evaluate(read, json.dumps(value))
        leaf = chat["nodes"][chat["leaf"]]
        assert (leaf["role"], leaf["content"]) == ("assistant", "world")
        first = chat["nodes"][leaf["parent"]]
        assert (first["role"], first["content"], first["parent"]) == ("user", "hello", "")


def test_files_are_attached_if_the_model_takes_them(page: Any, address: str):
    page.goto(address)
    page.get_by_role("textbox", name="Message").wait_for()
    picker = page.get_by_label("Attach files")
    picker.set_input_files({"name": "notes.txt", "mimeType": "text/plain", "buffer": b"the notes"})
    page.get_by_text("notes.txt (9 characters)").wait_for()
    picker.set_input_files({"name": "a.png", "mimeType": "image/png", "buffer": b"x"})
    page.get_by_text("a.png: this model takes no images.").wait_for()
    with page.expect_request("**/v1/chat/completions") as asked:
        say(page, "Write a poem.")
    assert asked.value.post_data_json["messages"][0]["content"] == "notes.txt:\n```\nthe notes\n```\n\nWrite a poem."
    answered(page)


@LONG
def test_recordings_and_documents_are_sent_whole(page: Any, address: str):
    page.route("**/props?*", lambda route: route.fulfill(json={"modalities": {"audio": True}}))
    page.goto(address)
    page.get_by_role("textbox", name="Message").wait_for()
    until(page, "import('./ui/state/server.js').then((server) => server.props.value?.modalities?.audio === true)")
    picker = page.get_by_label("Attach files")
    picker.set_input_files({"name": "a.wav", "mimeType": "audio/wav", "buffer": b"sound"})
    page.get_by_text("a.wav", exact=True).wait_for()
    picker.set_input_files({"name": "b.pdf", "mimeType": "application/pdf", "buffer": b"%PDF"})
    page.get_by_text("b.pdf", exact=True).wait_for()
    with page.expect_request("**/v1/chat/completions") as asked:
        say(page, "What is it?")
    assert asked.value.post_data_json["messages"][0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "input_audio", "input_audio": {"data": b64encode(b"sound").decode(), "format": "wav"}},
        {
            "type": "file",
            "file": {"filename": "b.pdf", "file_data": f"data:application/pdf;base64,{b64encode(b'%PDF').decode()}"},
        },
    ]


@LONG
def test_thinking_is_switched_where_the_template_names_it_and_the_request_is_copied_as_code(page: Any, address: str):
    page.route("**/props?*", lambda route: route.fulfill(json={"chat_template": "{% if enable_thinking %}"}))
    page.goto(address)
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Thinking").select_option("off")
    page.get_by_role("button", name="Save", exact=True).click()
    with page.expect_request("**/v1/chat/completions") as asked:
        say(page, "Write \"a\" 'b' \\ poem.")
    assert asked.value.post_data_json["chat_template_kwargs"] == {"enable_thinking": False}
    answered(page)
    page.get_by_role("button", name="Settings").click()
    assert page.get_by_label("Thinking").input_value() == "off"
    page.get_by_text("Tools and request").click()
    page.get_by_role("button", name="Copy as Python").click()
    body = next(line for line in page.evaluate("copied").splitlines() if line.startswith("body = "))
    assert (
        json.loads(literal_eval(body.removeprefix("body = ")))["messages"][0]["content"] == "Write \"a\" 'b' \\ poem."
    )
    compile(page.evaluate("copied"), "copied", "exec")


def test_calls_of_tools_are_cards_whose_results_a_person_gives(page: Any, address: str):
    call: dict[str, Any] = {
        "index": 0,
        "id": "call_1",
        "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
    }
    deltas: list[dict[str, Any]] = [{"reasoning_content": "I should look."}, {"tool_calls": [call]}]
    chunks: list[dict[str, Any]] = [{"id": "chatcmpl-x", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"id": "chatcmpl-x", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    page.goto(address)
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    page.get_by_role("button", name="Settings").click()
    page.get_by_text("Tools and request").click()
    page.get_by_label("Tools (JSON)").fill('[{"name": "weather"}]')
    page.get_by_role("button", name="Save", exact=True).click()
    with page.expect_request("**/v1/chat/completions") as asked:
        say(page, "Weather in Rome?")
    assert asked.value.post_data_json["tools"][0]["function"]["name"] == "weather"
    page.get_by_text("Reasoning").click()
    page.get_by_text("I should look.").wait_for()
    page.get_by_label("Result of weather").fill("sunny")
    page.unroute("**/v1/chat/completions")
    with page.expect_request("**/v1/chat/completions") as asked:
        page.get_by_role("button", name="Send results").click()
    _, calling, result = asked.value.post_data_json["messages"]
    assert calling["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'
    assert result == {"role": "tool", "content": "sunny", "tool_call_id": "call_1"}


def test_settings_are_sent_and_kept_as_presets(page: Any, address: str):
    page.goto(address)
    page.get_by_role("textbox", name="Message").wait_for()
    page.get_by_role("button", name="Settings").click()
    page.get_by_placeholder("0.7").wait_for()
    page.get_by_label("Temperature").fill("0.3")
    page.get_by_label("System prompt").fill("Be brief.")
    page.once("dialog", lambda dialog: dialog.accept("Brief"))
    page.get_by_role("button", name="Save as preset").click()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Preset", exact=True).select_option("Brief")
    page.get_by_role("button", name="Save", exact=True).click()
    with page.expect_request("**/v1/chat/completions") as asked:
        say(page, "Write a poem.")
    body = asked.value.post_data_json
    assert body["temperature"] == 0.3
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}


def test_an_answer_is_inspected_token_by_token(page: Any, address: str):
    page.goto(address)
    say(page, "Write a poem.")
    answered(page)
    dialog, tokens = opened_tokens(page)
    assert "".join(tokens.all_inner_texts()).startswith("Some **bold**")
    tokens.nth(3).click()
    dialog.get_by_label("Temperature").fill("0")
    chances = dialog.locator(".lab td:nth-child(3)").all_inner_texts()
    assert [chance.split(" %")[0] for chance in chances] == ["100.0"] + ["0.0"] * (len(chances) - 1)
    dialog.locator(".lab tbody button").nth(1).click()
    page.get_by_role("log").get_by_text("2/2").wait_for()


def test_nothing_is_shown_before_the_key_also_below_a_path_prefix(page: Any, tmp_path: Path):
    with serving(tmp_path, "--api-key", "secret", "--root-path", "/llm") as url:
        page.goto(f"{url.removesuffix('/llm')}/llm/")
        field = page.get_by_role("dialog").get_by_label("API key")
        field.wait_for()
        assert page.get_by_role("textbox", name="Message").count() == 0
        assert page.get_by_role("navigation").count() == 0
        field.fill("wrong")
        field.press("Enter")
        page.get_by_text("does not know this key").wait_for()
        field.fill("secret")
        field.press("Enter")
        say(page, "Write a poem.")
        page.get_by_role("log").locator("strong", has_text="bold").wait_for()


def test_a_server_that_is_away_and_back_loses_no_chat(page: Any, tmp_path: Path):
    port = free_port()
    with serving(tmp_path, port=port, is_killed=True) as url:
        page.goto(url)
        say(page, "Write a poem.")
        answered(page)
        say(page, "Write at length.")
        page.get_by_role("log").get_by_text("word word").wait_for()
    page.get_by_text("The server cannot be reached").wait_for()
    page.get_by_role("log").locator("strong", has_text="bold").wait_for()
    with serving(tmp_path, port=port):
        page.get_by_text("The server cannot be reached").wait_for(state="detached")
        page.get_by_role("log").get_by_text("word word").wait_for()
        page.keyboard.press("Control+Shift+O")
        say(page, "Write a poem.")
        answered(page)


def test_two_tabs_with_six_streams(context: Any, address: str):
    tabs = [context.new_page() for _ in range(2)]
    for tab in tabs:
        tab.goto(address)
        tab.get_by_role("textbox", name="Message").wait_for()
        for number in range(3):
            tab.keyboard.press("Control+Shift+O")
            say(tab, f"Write for a while, {number}.")
            tab.get_by_role("log").get_by_text("some some").wait_for()
    for tab in tabs:
        answered(tab)
        listed = chats(tab)
        for number in range(2):
            listed.get_by_role("button", name=f"Write for a while, {number}.", exact=True).first.click()
            answered(tab)
            chats(tab)


@LONG
def test_an_answer_that_a_person_has_changed_is_written_on(page: Any, address: str):
    page.goto(address)
    say(page, "Write a poem.")
    answered(page)
    page.get_by_label("Model", exact=True).and_(page.locator("article")).get_by_role("button", name="Edit").click()
    page.get_by_label("Edited text").fill("It begins so")
    page.get_by_role("button", name="Save", exact=True).click()
    with page.expect_request("**/v1/chat/completions") as asked:
        page.get_by_role("button", name="Continue").click()
    body = asked.value.post_data_json
    assert body["continue_final_message"] is True
    assert body["messages"][-1] == {"role": "assistant", "content": "It begins so"}
    answered(page)


def test_reasoning_in_the_text_of_an_older_server_is_folded(page: Any, address: str):
    page.goto(address)
    nodes = {
        "a": {"id": "a", "parent": "", "role": "user", "content": "Why?"},
        "b": {"id": "b", "parent": "a", "role": "assistant", "content": "<think>\nBecause it is.\n</think>\n\nSo."},
    }
    take_in(page, [{"title": "Old", "updated": 1, "nodes": nodes, "leaf": "b"}])
    page.get_by_role("log").get_by_text("So.").wait_for()
    assert page.get_by_role("log").get_by_text("<think>").count() == 0
    page.get_by_text("Reasoning").click()
    page.get_by_text("Because it is.").wait_for()


MODELS = [
    {"id": name, "status": {"value": "loaded"}, "capabilities": ["completion"], "max_model_len": 1000}
    for name in ("one", "two")
]
MODELS.append({"id": "vectors", "status": {"value": "loaded"}, "capabilities": ["embedding"]})


@LONG
def test_models_are_compared_and_adapters_are_weighed(page: Any, address: str):
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": MODELS}))
    page.route("**/lora-adapters?*", lambda route: route.fulfill(json=[{"id": 0, "name": "sql", "scale": 0.5}]))
    page.goto(address)
    page.get_by_label("Answers").select_option("Each model")
    assert page.get_by_role("combobox", name="Model").locator("option").all_inner_texts() == ["one", "two"]
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("sql").fill("0.25")
    page.get_by_role("button", name="Save", exact=True).click()
    sent: list[Any] = []
    page.on("request", lambda request: sent.append(request) if request.url.endswith("/chat/completions") else None)
    say(page, "Write a poem.")
    page.get_by_role("button", name="Use answer 2").wait_for()
    bodies = [request.post_data_json for request in sent]
    assert sorted(body["model"] for body in bodies) == ["one", "two"]
    assert all(body["lora"] == [{"name": "sql", "scale": 0.25}] for body in bodies)


def test_the_request_is_shown_as_json(page: Any, address: str):
    page.goto(address)
    page.get_by_role("textbox", name="Message").wait_for()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_text("Tools and request").click()
    page.get_by_text("Request as JSON").click()
    page.get_by_text('"content": "Be brief."').wait_for()
