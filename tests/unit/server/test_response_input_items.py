"""What a stored response answers, as items, in pages."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from stoker.server.dialects.responses import input_items
from stoker.server.dialects.responses.input_types import InputItem
from stoker.text.messages import Message
from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app
from tests.unit.server.test_responses import ITEMS, Background, create


def items(app: ASGIApp, response_id: str, query: str = "") -> httpx.Response:
    return ask(app, "GET", f"/v1/responses/{response_id}/input_items{query}")


def texts(reply: Any) -> list[str]:
    return [item["content"][0]["text"] for item in reply["data"]]


def test_every_kind_of_item_is_there_again_and_instructions_are_not():
    app = make_app(FakeRuntime())
    reply = items(app, create(app, input=ITEMS, instructions="I")["id"], "?order=asc").json()
    assert (reply["object"], reply["has_more"]) == ("list", False)
    developer, user, call, output, assistant = reply["data"]
    assert (developer["type"], developer["role"], developer["content"]) == (
        "message",
        "developer",
        [{"type": "input_text", "text": "D"}],
    )
    assert user["content"][0]["text"] == "U"
    assert (call["type"], call["call_id"], call["name"], call["arguments"]) == ("function_call", "c1", "f", "{}")
    assert (output["type"], output["call_id"], output["output"]) == ("function_call_output", "c1", "R")
    assert assistant["content"] == [{"type": "output_text", "text": "A", "annotations": []}]
    assert (reply["first_id"], reply["last_id"]) == (developer["id"], assistant["id"])
    assert len({item["id"] for item in reply["data"]}) == 5


def test_earlier_turns_belong_to_it_and_the_newest_comes_first():
    app = make_app(FakeRuntime())
    first = create(app, input="one")
    second = create(app, input="two", previous_response_id=first["id"])
    assert texts(items(app, second["id"]).json()) == ["two", "Hello!", "one"]
    assert texts(items(app, first["id"]).json()) == ["one"]


def test_only_the_items_of_the_page_are_made(monkeypatch: pytest.MonkeyPatch):
    app = make_app(FakeRuntime())
    conversation_id = ask(app, "POST", "/v1/conversations", json={}).json()["id"]
    given = [{"role": "user", "content": str(number)} for number in range(25)]
    response_id = create(app, input=given, conversation=conversation_id)["id"]
    made: list[str] = []

    def item_of(item_id: str, part: Message) -> InputItem:
        made.append(item_id)
        return make(item_id, part)

    make = input_items.item_of
    monkeypatch.setattr(input_items, "item_of", item_of)
    for path in (f"/v1/responses/{response_id}/input_items", f"/v1/conversations/{conversation_id}/items"):
        made.clear()
        page = ask(app, "GET", f"{path}?limit=3").json()
        assert (len(page["data"]), len(made), page["has_more"]) == (3, 3, True)
        assert [page["first_id"], page["last_id"]] == [made[0], made[-1]]


def test_pages():
    app = make_app(FakeRuntime())
    response_id = create(app, input=[{"role": "user", "content": str(number)} for number in range(25)])["id"]
    by_default = items(app, response_id).json()
    assert (len(by_default["data"]), by_default["has_more"]) == (20, True)
    rest = items(app, response_id, f"?after={by_default['last_id']}").json()
    assert (texts(rest), rest["has_more"]) == (["4", "3", "2", "1", "0"], False)
    assert texts(items(app, response_id, "?limit=2&order=asc").json()) == ["0", "1"]
    nothing = items(app, response_id, f"?after={rest['last_id']}").json()
    assert nothing == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


LIMITS = ["0", "101", "x", "-1", "", "000000001000", "000000001" + "0" * 4400]


@pytest.mark.parametrize("query", [*(f"limit={limit}" for limit in LIMITS), "order=up", "after=other"])
def test_what_makes_no_page_is_refused(query: str):
    app = make_app(FakeRuntime())
    refused = items(app, create(app)["id"], f"?{query}")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, query.partition("=")[0])


def test_what_is_not_stored_has_none():
    app = make_app(FakeRuntime())
    assert items(app, "resp_other").status_code == 404


def test_they_are_there_while_it_runs_and_after_it_was_cancelled():
    async def test() -> None:
        background = Background(FakeRuntime(lambda submit: ["a", asyncio.Event()]))
        response_id = await background.start()
        await background.until(response_id, "in_progress", "a")
        path = f"/v1/responses/{response_id}"
        assert texts((await background.client.get(f"{path}/input_items")).json()) == ["hi"]
        assert (await background.client.post(f"{path}/cancel")).json()["status"] == "cancelled"
        assert texts((await background.client.get(f"{path}/input_items")).json()) == ["hi"]

    asyncio.run(test())
