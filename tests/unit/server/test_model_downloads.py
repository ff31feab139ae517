"""Downloads in the background, as llama-server's router has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from stoker.errors import Cancelled, DownloadFailed
from stoker.models.cache import models_dir, write_receipt
from stoker.runtime.registry import ModelSpec, Registry, ServedModel
from stoker.server.config import ServerConfig
from stoker.server.models.pulls import Pulls
from stoker.server.transport.app import create_app
from tests.unit.models.tiny_gguf import SHAPE, write_tiny_gguf
from tests.unit.server.downloads_source import Source
from tests.unit.server.fake_runtime import FakeRuntime, RawClient, ask, make_app
from tests.unit.server.test_connection import run

NAME = "org/repo:Q8_0"
FILE_NAME = "hf:org/repo:m-Q8_0.gguf"


@dataclass
class Serving:
    client: httpx.AsyncClient
    source: Source
    news: Callable[[], Any]
    """The next event of `/models/sse`."""

    async def send(self, method: str, **given: Any) -> httpx.Response:
        return await self.client.request(method, "/models", **given)

    async def listed(self, path: str = "/models") -> dict[str, dict[str, Any]]:
        return {entry["id"]: entry["status"] for entry in (await self.client.get(path)).json()["data"]}


@asynccontextmanager
async def serving(source: Source, found: list[ModelSpec]) -> AsyncGenerator[Serving]:
    """A server that was started without a list of models; `found` are those that it finds."""
    registry = Registry(discover=lambda: found)
    registry.adopt(ServedModel(("tiny",), FakeRuntime()))
    app = create_app(registry, ServerConfig(), parts=[Pulls(source)])
    await registry.start()
    follower = RawClient(app, "/models/sse", {})
    follower._scope["method"] = "GET"

    async def news() -> Any:
        return msgspec.json.decode((await follower.next_body()).removeprefix(b"data: "))

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        try:
            yield Serving(client, source, news)
        finally:
            source.go_on.release(10)
            follower.leave()
            await follower.task
            await registry.close()


def spec(name: str) -> ModelSpec:
    return ModelSpec(names=(name,), make=lambda _plan: FakeRuntime())


def test_a_download_goes_on_without_its_client_and_the_model_is_found() -> None:
    async def test() -> None:
        found: list[ModelSpec] = []
        async with serving(Source(), found) as server:
            assert (await server.send("POST", json={"model": NAME})).json() == {"success": True}
            assert server.source.calls == ["hf:org/repo:Q8_0"]
            assert (await server.listed())[NAME]["value"] == "downloading"
            assert (await server.listed())[NAME]["progress"] == {"m.gguf": {"done": 0, "total": 30}}
            assert NAME not in await server.listed("/v1/models"), "it cannot be asked yet"
            again = await server.send("POST", json={"model": NAME})
            assert (again.status_code, "already" in again.json()["error"]["message"]) == (400, True)
            found.append(spec(FILE_NAME))
            server.source.go_on.release(3)
            seen = [await server.news()]
            while seen[-1]["event"] != "models_reload":
                seen.append(await server.news())
            progress = [event["data"]["progress"]["m.gguf"] for event in seen[:-2]]
            assert [each["done"] for each in progress] == sorted({each["done"] for each in progress})
            assert {each["total"] for each in progress} == {30}
            assert {(event["model"], event["event"]) for event in seen[:-2]} == {(NAME, "download_progress")}
            assert seen[-2:] == [
                {"model": NAME, "event": "download_finished", "data": {}},
                {"model": "*", "event": "models_reload", "data": {}},
            ]
            assert set(await server.listed()) == {"tiny", FILE_NAME}
            asked = await server.client.post("/tokenize", json={"model": NAME, "content": "a"})
            assert asked.status_code == 200, "the name of the download means the file that came"

    run(test())


@pytest.mark.parametrize("way", ["DELETE", "unload"])
def test_a_download_is_given_up(way: str) -> None:
    async def test() -> None:
        async with serving(Source(), []) as server:
            await server.send("POST", json={"model": NAME})
            if way == "DELETE":
                ended = await server.send("DELETE", params={"model": NAME})
            else:
                ended = await server.client.post("/models/unload", json={"model": NAME})
            assert ended.json() == {"success": True}
            events = [await server.news()]
            while events[-1]["event"] == "download_progress":
                events.append(await server.news())
            assert events[-1]["event"] == "download_failed"
            assert "given up" in events[-1]["data"]["error"]
            assert NAME not in await server.listed()
            server.source.go_on.release()
            assert await asyncio.to_thread(server.source.ended.wait, 5)
            assert isinstance(server.source.end, Cancelled)

    run(test())


def test_what_fails_at_once_is_an_error_and_what_fails_later_is_news() -> None:
    async def test() -> None:
        async with serving(Source(DownloadFailed("no network")), []) as server:
            refused = await server.send("POST", json={"model": NAME})
            assert (refused.status_code, refused.json()["error"]["message"]) == (502, "no network")
            assert set(await server.listed()) == {"tiny"}
            server.source.error = None
            await server.send("POST", json={"model": NAME})
            server.source.late = DownloadFailed("the disk is full")
            server.source.go_on.release(3)
            events = [await server.news()]
            while events[-1]["event"] == "download_progress":
                events.append(await server.news())
            assert events[-1] == {"model": NAME, "event": "download_failed", "data": {"error": "the disk is full"}}
            assert (await server.send("POST", json={"model": NAME})).status_code == 200, "it may be tried again"
            await server.send("DELETE", params={"model": NAME})

    run(test())


@pytest.mark.parametrize("model", ["", None, "/etc/passwd", "../x", "nothing-like-it"])
def test_no_files_are_looked_for(model: str | None) -> None:
    async def test() -> None:
        async with serving(Source(DownloadFailed("it was asked")), []) as server:
            refused = await server.send("POST", json={"model": model})
            assert refused.status_code in (400, 404)
            assert not server.source.calls

    run(test())


def test_a_server_with_a_list_of_models_downloads_none() -> None:
    refused = ask(make_app(FakeRuntime()), "POST", "/models", json={"model": NAME})
    assert (refused.status_code, "list of models" in refused.text) == (400, True)


def test_a_downloaded_model_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path))
    path = models_dir() / "hf" / "org" / "repo" / "m-Q8_0.gguf"
    path.parent.mkdir(parents=True)
    write_tiny_gguf(path, **SHAPE)
    write_receipt(path, FILE_NAME, "test", path, "5" * 64)
    found = [spec(FILE_NAME)]

    async def test() -> None:
        async with serving(Source(), found) as server:
            assert (await server.send("DELETE")).status_code == 400
            assert (await server.send("DELETE", params={"model": "org/repo:Q4_0"})).status_code == 404
            assert path.exists()
            found.clear()
            assert (await server.send("DELETE", params={"model": NAME})).json() == {"success": True}
            assert not path.exists()

    run(test())
