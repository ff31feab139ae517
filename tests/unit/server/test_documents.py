"""Documents in the messages of every dialect: what the model is given, and what clients are told of bad ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from stoker.media.documents import DocumentReader
from stoker.media.pages import Page
from tests.pdf_files import pdf_file
from tests.projector_files import base64_of, data_url, picture
from tests.unit.server.fake_runtime import CARD, FakeRuntime, ask, make_app
from tests.unit.server.test_batches import serving

PDF = base64_of(pdf_file(["Hello", "World"]))
BOTH_PAGES = "report.pdf\n[page 1 of 2]\nHello\n[page 2 of 2]\nWorld"
NOTE = base64_of("Grüße".encode())


FOUND = {
    "type": "search_result",
    "source": "https://a.example/b",
    "title": "T",
    "content": [{"type": "text", "text": "abc"}, {"type": "text", "text": "def"}],
    "citations": {"enabled": True},
}


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Documents are read without a process; the sizes and places of those that were."""
    asked: list[tuple[int, str]] = []

    def pages(self: DocumentReader, data: bytes, side: int, where: str) -> list[Page]:
        asked.append((side, where))
        image = picture("red") if side else b""
        return [Page("Hello", image), Page("World", picture("blue") if side else b"")]

    monkeypatch.setattr(DocumentReader, "pages", pages)
    return asked


def seeing(runtime: FakeRuntime) -> FakeRuntime:
    runtime.model_card = msgspec.structs.replace(CARD, media=["image"])
    return runtime


def said(path: str, body: dict[str, Any], runtime: FakeRuntime) -> str:
    """The text of the last message, as the model is given it."""
    response = ask(make_app(runtime), "POST", path, json={"max_tokens": 4, **body} if "input" not in body else body)
    assert response.status_code == 200, response.text
    return runtime.rendered[-1][0][-1].text


def chat(part: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "?"}]}]}


def item(part: dict[str, Any]) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [part, {"type": "input_text", "text": "?"}]}]}


CHAT = "/v1/chat/completions"


@pytest.mark.usefixtures("no_process")
def test_a_document_is_its_text_in_every_dialect():
    runtime = FakeRuntime()
    file = {"filename": "report.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}
    source = {"type": "base64", "media_type": "application/pdf", "data": PDF}
    asked = [
        (CHAT, chat({"type": "file", "file": file})),
        ("/v1/responses", item({"type": "input_file", **file})),
        ("/v1/messages", chat({"type": "document", "title": "report.pdf", "source": source})),
    ]
    for path, body in asked:
        assert said(path, body, runtime) == f"{BOTH_PAGES}\n?", path


def test_pages_are_images_too_for_a_model_that_takes_them(no_process: list[tuple[int, str]]):
    runtime = seeing(FakeRuntime())
    body = item({"type": "input_file", "file_data": PDF, "detail": "low"})
    text = said("/v1/responses", body, runtime)
    media = runtime.submits[-1].media
    assert [file.data for file in media] == [picture("red"), picture("blue")]
    first, second = (file.marker for file in media)
    assert text == f"[page 1 of 2]\nHello\n{first}[page 2 of 2]\nWorld\n{second}?"
    said(CHAT, chat({"type": "file", "file": {"file_data": PDF}}), runtime)
    assert no_process == [(512, "input[0].content[0]"), (1568, "messages[0].content[0]")]


def test_search_results_are_texts_also_in_results_of_tools():
    result = {"type": "tool_result", "tool_use_id": "t", "content": [FOUND]}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    messages = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    assert said("/v1/messages", chat(FOUND), FakeRuntime()) == "T\nhttps://a.example/b\nabc\ndef\n?"
    assert said("/v1/messages", {"messages": messages}, FakeRuntime()) == "T\nhttps://a.example/b\nabc\ndef"


def test_texts_and_blocks_are_documents_also_in_results_of_tools():
    runtime = FakeRuntime()
    assert said(CHAT, chat({"type": "file", "file": {"file_data": NOTE, "filename": "n.txt"}}), runtime) == (
        "n.txt\nGrüße\n?"
    )
    text = {"type": "document", "source": {"type": "text", "data": "abc"}, "title": "T", "context": "C"}
    assert said("/v1/messages", chat(text), runtime) == "T\nC\nabc\n?"
    for content in ("abc", [{"type": "text", "text": "abc"}]):
        blocks = {"type": "document", "source": {"type": "content", "content": content}, "title": "T"}
        assert said("/v1/messages", chat(blocks), runtime) == "T\nabc\n?"
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text]}
    assert said("/v1/messages", {"messages": [{"role": "user", "content": [result]}]}, runtime) == "T\nC\nabc"
    template = ask(make_app(runtime), "POST", "/apply-template", json=chat(text))
    assert template.json()["prompt"] == "<user>T\nC\nabc\n?"


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "file", "file": {"file_data": base64_of(b"%PDF-1.4 nothing")}}, "messages[0].content[0]`: the PDF"),
        ({"type": "file", "file": {"file_data": base64_of(b"PK\3\4\0\xff")}}, "send a PDF file, or UTF-8 text"),
        ({"type": "file", "file": {"file_data": "!!"}}, ".file.file_data` is not valid base64"),
        ({"type": "file", "file": {"filename": "x"}}, "in `file_data`"),
        ({"type": "file", "file": "x"}, "content[0].file` must be an object"),
        ({"type": "file", "file": {"file_id": "file-1"}}, "stores no files"),
        ({"type": "input_file", "file_url": "ftp://example.com/x.pdf"}, "not fetched here"),
        ({"type": "file", "file": {"file_data": base64_of(pdf_file([""]))}}, "has only images and no text"),
    ],
)
def test_what_is_wrong_with_a_document_is_told(part: dict[str, Any], words: str):
    response = ask(make_app(FakeRuntime()), "POST", CHAT, json=chat(part))
    assert (response.status_code, words in response.text) == (400, True), response.text


def test_stored_files_are_named_by_their_ids_and_only_by_their_owner(tmp_path: Path):
    async def check() -> None:
        runtime = seeing(FakeRuntime())
        async with serving(tmp_path, runtime) as setting:
            alice, bob = setting.client(), setting.client("sk-bob")
            note = await alice.files.create(file=("n.txt", "Grüße".encode()), purpose="user_data")
            red = await alice.files.create(file=("red.png", picture("red")), purpose="vision")
            parts: list[Any] = [{"type": "input_file", "file_id": note.id}, {"type": "input_image", "file_id": red.id}]
            asked: list[Any] = [{"role": "user", "content": parts}]
            await alice.responses.create(model="tiny", input=asked)
            assert runtime.rendered[-1][0][-1].text == f"Grüße{runtime.submits[-1].media[0].marker}"
            assert [file.data for file in runtime.submits[-1].media] == [picture("red")]
            file: Any = {"type": "file", "file": {"file_id": note.id, "filename": "n"}}
            await alice.chat.completions.create(model="tiny", messages=[{"role": "user", "content": [file]}])
            assert runtime.rendered[-1][0][-1].text == "n\nGrüße"
            headers = {"Authorization": "Bearer sk-alice"}
            sources = [
                {"type": kind, "source": {"type": "file", "file_id": stored.id}}
                for kind, stored in (("document", note), ("image", red))
            ]
            body = {"max_tokens": 4, "messages": [{"role": "user", "content": sources}]}
            posted = await asyncio.to_thread(ask, setting.app, "POST", "/v1/messages", json=body, headers=headers)
            assert posted.status_code == 200, posted.text
            with pytest.raises(openai.NotFoundError, match="is not stored here"):
                await bob.responses.create(model="tiny", input=asked)

    asyncio.run(check())


def test_an_image_for_a_model_that_takes_none_is_still_refused():
    response = ask(make_app(FakeRuntime()), "POST", CHAT, json=chat(image_part()))
    assert (response.status_code, "takes no images" in response.text) == (400, True)


@pytest.mark.parametrize("kind", ["image", "audio"])
def test_so_is_one_with_a_url_in_every_api(kind: str):
    part = {"type": f"{kind}_url", f"{kind}_url": {"url": "https://example.com/file"}}
    blocks = [{"type": "image", "source": {"type": "url", "url": "https://example.com/file"}}]
    item = [{"role": "user", "content": [{"type": "input_image", "image_url": "https://example.com/file"}]}]
    asked: list[tuple[str, Any]] = [(CHAT, chat(part)), ("/apply-template", {"messages": chat(part)["messages"]})]
    if kind == "image":
        asked += [
            ("/v1/messages", {"max_tokens": 4, "messages": [{"role": "user", "content": blocks}]}),
            ("/v1/responses", {"input": item}),
        ]
    for path, body in asked:
        response = ask(make_app(FakeRuntime()), "POST", path, json=body)
        assert response.status_code == 400
        assert f"takes no {kind}" in response.text
        assert "--mmproj" in response.text


def image_part() -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(picture("red"))}}


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize("is_added", [False, True])
def test_files_in_a_conversation_are_read_when_they_are_added_and_found_by_reference(is_added: bool):
    app = make_app(runtime := seeing(FakeRuntime()))
    report = {"type": "input_file", "filename": "report.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}
    image = {"type": "input_image", "image_url": data_url(picture("green"))}
    items = [{"role": "user", "content": [report, image]}]
    talk = ask(app, "POST", "/v1/conversations", json={} if is_added else {"items": items}).json()["id"]
    if is_added:
        added = ask(app, "POST", f"/v1/conversations/{talk}/items", json={"items": items})
        assert added.status_code == 200, added.text
    (listed,) = ask(app, "GET", f"/v1/conversations/{talk}/items").json()["data"]
    kinds = [part["type"] for part in listed["content"]]
    assert kinds.count("input_image") == 3, "two pages and the picture"
    reference = {"type": "item_reference", "id": listed["id"]}
    for body in ({"conversation": talk, "input": "?"}, {"input": [reference]}, {"input": [listed]}):
        response = ask(app, "POST", "/v1/responses", json=body)
        assert response.status_code == 200, response.text
        assert "Hello" in runtime.rendered[-1][0][0].text
        colors = [picture("red"), picture("blue"), picture("green")]
        assert [file.data for file in runtime.submits[-1].media] == colors
    second = ask(app, "POST", f"/v1/conversations/{talk}/items", json={"items": [reference]})
    assert second.json()["data"][0]["content"] == listed["content"]


def test_files_in_a_conversation_are_texts_if_no_model_takes_images(no_process: list[tuple[int, str]]):
    app = make_app(FakeRuntime())
    part = {"type": "input_file", "filename": "report.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}
    body = {"items": [{"role": "user", "content": [part]}]}
    talk = ask(app, "POST", "/v1/conversations", json=body).json()["id"]
    (listed,) = ask(app, "GET", f"/v1/conversations/{talk}/items").json()["data"]
    assert {piece["type"] for piece in listed["content"]} == {"input_text"}
    assert no_process == [(0, "items[0].content[0]")]


def test_stored_files_in_a_conversation_belong_to_their_owner(tmp_path: Path):
    async def check() -> None:
        runtime = seeing(FakeRuntime())
        async with serving(tmp_path, runtime) as setting:
            alice, bob = setting.client(), setting.client("sk-bob")
            note = await alice.files.create(file=("n.txt", "Grüße".encode()), purpose="user_data")
            items: list[Any] = [{"role": "user", "content": [{"type": "input_file", "file_id": note.id}]}]
            talk = await alice.conversations.create(items=items)
            added = await alice.conversations.items.create(talk.id, items=items)
            await alice.files.delete(note.id)
            await alice.responses.create(model="tiny", conversation=talk.id)
            assert [message.text for message in runtime.rendered[-1][0]] == ["Grüße", "Grüße"]
            reference: Any = {"type": "item_reference", "id": added.data[0].id}
            await alice.responses.create(model="tiny", input=[reference])
            assert runtime.rendered[-1][0][-1].text == "Grüße"
            with pytest.raises(openai.NotFoundError, match="is not stored here"):
                await bob.conversations.create(items=items)
            with pytest.raises(openai.NotFoundError, match="conversation"):
                await bob.conversations.items.create(talk.id, items=items)

    asyncio.run(check())


@pytest.mark.parametrize("part", [{"type": "input_file", "file_id": "file-1"}, {"type": "input_file"}])
def test_files_in_a_conversation_are_refused_as_in_responses(part: dict[str, Any]):
    app = make_app(FakeRuntime())
    items = [{"role": "user", "content": [part]}]
    refused = ask(app, "POST", "/v1/conversations", json={"items": items}).json()["error"]
    expected = ask(app, "POST", "/v1/responses", json={"input": items}).json()["error"]
    assert refused == {**expected, "param": refused["param"], "message": refused["message"]}
    assert refused["param"] == str(expected["param"]).replace("input[0]", "items[0]", 1)


def test_items_that_a_conversation_has_no_room_for_are_refused_and_leave_it_as_it_is():
    app = make_app(seeing(FakeRuntime()), max_stored_bytes=2**18)
    talk = ask(app, "POST", "/v1/conversations", json={"items": [{"role": "user", "content": "hi"}]}).json()["id"]
    large = [{"role": "user", "content": "x" * 2**18}]
    for path in ("/v1/conversations", f"/v1/conversations/{talk}/items"):
        error = ask(app, "POST", path, json={"items": large}).json()["error"]
        assert (error["param"], "larger than this server stores" in error["message"]) == ("items", True)
    assert len(ask(app, "GET", f"/v1/conversations/{talk}/items").json()["data"]) == 1
