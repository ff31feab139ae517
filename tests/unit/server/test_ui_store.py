"""Conversations that the page keeps on the server: each key has its own, and the newest version counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app


class Store:
    """A client with a key of a server that keeps conversations."""

    def __init__(self, folder: Path, key: str = "", **settings: Any) -> None:
        self._app = make_app(FakeRuntime(), ui_store=str(folder), **settings)
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def send(self, method: str, path: str = "", **kwargs: Any) -> httpx.Response:
        return ask(self._app, method, f"/ui-store/chats{path}", headers=self._headers, **kwargs)

    def put(self, chat_id: str, updated: float, **fields: Any) -> httpx.Response:
        return self.send("PUT", f"/{chat_id}", json={"id": chat_id, "updated": updated, **fields})

    def listed(self) -> list[Any]:
        return sorted(self.send("GET").json()["chats"], key=lambda chat: chat["id"])


def test_a_conversation_is_kept_as_it_was_sent(tmp_path: Path):
    store = Store(tmp_path / "chats")
    assert store.listed() == []
    chat = {"title": "Rome", "nodes": {"n": {"content": "é\n"}}, "leaf": "n"}
    assert store.put("a1", 1_700_000_000_123, **chat).status_code == 200
    assert store.listed() == [{"id": "a1", "updated": 1_700_000_000_123}]
    assert Store(tmp_path / "chats").send("GET", "/a1").json() == {"id": "a1", "updated": 1_700_000_000_123, **chat}
    assert store.send("GET", "/other").status_code == 404
    assert [path.name for path in tmp_path.glob("chats/*/*")] == ["a1.json"]


def test_an_older_version_replaces_no_newer_one(tmp_path: Path):
    store = Store(tmp_path)
    store.put("a", 2000, title="new")
    assert store.put("a", 1000, title="old").status_code == 409
    assert store.send("GET", "/a").json()["title"] == "new"
    assert store.put("a", 2000, title="the same time").status_code == 200
    assert store.put("a", 3000, title="newer").status_code == 200
    assert store.send("GET", "/a").json()["title"] == "newer"


def test_a_deleted_conversation_stays_deleted_for_older_browsers(tmp_path: Path):
    store = Store(tmp_path)
    store.put("a", 1000)
    assert store.send("DELETE", "/a?updated=2000").status_code == 204
    assert store.listed() == [{"id": "a", "updated": 2000, "gone": True}]
    assert store.send("GET", "/a").status_code == 404
    assert store.put("a", 1500).status_code == 409
    assert store.put("a", 2500).status_code == 200, "a browser went on with it"
    assert store.listed() == [{"id": "a", "updated": 2500}]


def test_each_key_has_its_own_conversations(tmp_path: Path):
    ann, bob = (Store(tmp_path, key, api_key="ann:one,bob:two") for key in ("one", "two"))
    ann.put("a", 1000, title="Ann's")
    assert bob.listed() == []
    assert bob.send("GET", "/a").status_code == 404
    bob.send("DELETE", "/a?updated=9000")
    assert ann.send("GET", "/a").json()["title"] == "Ann's"
    assert Store(tmp_path, "wrong", api_key="ann:one").send("GET").status_code == 401
    assert not any("one" in path.name or "ann" in path.name for path in tmp_path.iterdir())


@pytest.mark.parametrize("name", ["..%2fa", "%2e%2e", "a.json", "a" * 65, "a%00", "é"])
def test_an_id_is_no_path(tmp_path: Path, name: str):
    store = Store(tmp_path / "chats")
    for method in ("GET", "DELETE"):
        assert store.send(method, f"/{name}?updated=1").status_code in (400, 404)
    reply = store.send("PUT", f"/{name}", json={"id": name, "updated": 1})
    assert reply.status_code in (400, 404)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"id": "a"}', b'{"id": "b", "updated": 1}', b"\xff"])
def test_what_is_no_conversation_is_refused(tmp_path: Path, body: bytes):
    assert Store(tmp_path).send("PUT", "/a", content=body).status_code == 400


@pytest.mark.parametrize("updated", ["0", "-1", "1e300", "nan", "x", ""])
def test_a_time_must_be_one(tmp_path: Path, updated: str):
    assert Store(tmp_path).send("DELETE", f"/a?updated={updated}").status_code == 400


def test_without_a_folder_the_server_keeps_nothing():
    app = make_app(FakeRuntime())
    assert ask(app, "GET", "/ui-store/chats").json() == {"kept": False, "chats": []}
    for method, path in (("GET", "/a"), ("DELETE", "/a?updated=1")):
        assert ask(app, method, f"/ui-store/chats{path}").status_code == 404
