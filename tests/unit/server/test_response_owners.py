"""A response belongs to the key that made it. For everybody else it is not there, however it is asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

from stoker.server.access.keys import ApiKeys
from stoker.server.config import ServerConfig
from tests.unit.server.fake_runtime import FakeRuntime, make_app
from tests.unit.server.test_access import bearer
from tests.unit.server.test_responses import Background

API_KEYS = "alice:sk-alice,alice:sk-alice-2,bob:sk-bob,sk-carol,admin:sk-dave"
STRANGERS = ["sk-bob", "sk-carol", "sk-root"]
NOT_THERE = (404, "response_not_found")

ASKED = [("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")]
"""Deleted last: its owner is asked in the same order."""


def clients(runtime: FakeRuntime, *keys: str) -> list[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=make_app(runtime, api_key=API_KEYS, admin_key="sk-root"))
    return [httpx.AsyncClient(transport=transport, base_url="http://test", headers=bearer(key)) for key in keys]


def said(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


async def ended(client: httpx.AsyncClient, **body: Any) -> Any:
    reply = await client.post("/v1/responses", json={"input": "secret", **body})
    return reply.raise_for_status().json()


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("stranger", STRANGERS)
def test_only_its_key_sees_and_changes_it(background: bool, stranger: str):
    async def go() -> None:
        runtime = FakeRuntime(lambda submit: ["a", asyncio.Event(), "b"] if background else ["a", "b"])
        mine, theirs = clients(runtime, "sk-alice", stranger)
        path = f"/v1/responses/{(await ended(mine, background=background))['id']}"
        await asyncio.sleep(0)  # a request without a network never lets another task run
        for method, tail in ASKED:
            assert said(await theirs.request(method, path + tail)) == NOT_THERE
        for method, tail in ASKED:
            was_running = background or tail != "/cancel"  # else there is nothing to cancel
            assert (await mine.request(method, path + tail)).status_code == (200 if was_running else 400)
        assert said(await mine.get(path)) == NOT_THERE

    asyncio.run(go())


@pytest.mark.parametrize("stranger", STRANGERS)
def test_only_its_key_goes_on_from_it_and_refers_to_its_items(stranger: str):
    async def go() -> None:
        mine, theirs = clients(FakeRuntime(), "sk-alice", stranger)
        made = await ended(mine)
        (asked,) = (await mine.get(f"/v1/responses/{made['id']}/input_items")).json()["data"]
        continued: list[dict[str, Any]] = [
            {"previous_response_id": made["id"]},
            *({"input": [{"type": "item_reference", "id": item["id"]}]} for item in (asked, made["output"][0])),
        ]
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            for body in continued:
                assert said(await theirs.post(path, json={"input": "hi", **body})) == NOT_THERE
                assert (await mine.post(path, json={"input": "hi", **body})).status_code == 200

    asyncio.run(go())


def test_keys_of_one_name_share_what_they_made():
    async def go() -> None:
        first, second = clients(FakeRuntime(), "sk-alice", "sk-alice-2")
        made = await ended(first)
        assert (await second.get(f"/v1/responses/{made['id']}")).json() == made

    asyncio.run(go())


def test_a_client_key_that_is_called_admin_is_not_the_admin_key():
    async def go() -> None:
        root, dave = clients(FakeRuntime(), "sk-root", "sk-dave")
        assert said(await dave.get(f"/v1/responses/{(await ended(root))['id']}")) == NOT_THERE

    asyncio.run(go())


def test_a_number_that_passes_to_another_key_takes_nothing_with_it(tmp_path: Path):
    file, now = tmp_path / "keys", [0.0]
    file.write_text("first\nsecond")
    keys = ApiKeys(ServerConfig(api_key_file=str(file)), lambda: now[0])

    def owner(key: str) -> str:
        found = keys.match(Headers(bearer(key)))
        assert found is not None
        return found.owner

    before = {key: owner(key) for key in ("first", "second")}
    assert len(set(before.values())) == 2
    file.write_text("second\nthird")
    now[0] = 1
    assert owner("second") == before["second"]
    assert owner("third") not in before.values()


def test_without_keys_everybody_is_one():
    async def go() -> None:
        background = Background(FakeRuntime())
        response_id = await background.start()
        assert (await background.until(response_id, "completed"))["id"] == response_id

    asyncio.run(go())
