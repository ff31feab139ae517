"""Models that come and go while the server is asked: over HTTP, with runtimes that follow a script."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import msgspec

from stoker.errors import ModelFileInvalid, StokerError
from stoker.models.memory_plan import MemoryNeeds, MemoryPlan
from stoker.runtime.base import Runtime
from stoker.runtime.config import RegistryConfig
from stoker.runtime.registry import ModelSpec, Registry
from stoker.server.config import ServerConfig
from stoker.server.transport.app import create_app
from tests.unit.runtime.fake_models import live
from tests.unit.server.fake_runtime import FakeRuntime, RawClient
from tests.unit.server.test_connection import held_open
from tests.waiting import until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


class Models:
    """A server with the models `a` and `b`, each of 60 bytes, on a machine of 100."""

    def __init__(self, **specs: Any) -> None:
        self.made: dict[str, list[FakeRuntime]] = {"a": [], "b": []}
        self.script: Callable[..., Any] = lambda submit: ["Hel", "lo", "!"]
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: StokerError | None = None
        self.now = 1000.0
        self.registry = Registry(
            [self.spec(name, **specs) for name in self.made],
            RegistryConfig(swap_after_s=1000),
            available=lambda: 100,
            clock=lambda: self.now,
        )
        self.app = create_app(self.registry, ServerConfig())
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test")

    def spec(self, name: str, **fields: Any) -> ModelSpec:
        needs = MemoryNeeds(
            model=name,
            ctx_size=1,
            kv_tokens=1,
            parallel=1,
            spare_kv_tokens=0,
            weights_bytes=40,
            kv_bytes_per_token=15,
            compute_bytes=5,
        )
        make = functools.partial(self._make, name)
        return ModelSpec(names=(name,), make=make, measure=lambda: needs, created=7, path=f"/m/{name}", **fields)

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.registry._residency.wake()

    async def states(self) -> dict[str, str]:
        entries = (await self.client.get("/v1/models")).json()["data"]
        return {entry["id"]: entry["status"]["value"] for entry in entries}

    async def until_state(self, **wanted: str) -> None:
        while not wanted.items() <= (await self.states()).items():  # noqa: ASYNC110
            await asyncio.sleep(0)

    def _make(self, name: str, _plan: MemoryPlan | None) -> Runtime:
        runtime = _Gated(self)
        self.made[name].append(runtime)
        return runtime


class _Gated(FakeRuntime):
    def __init__(self, models: Models) -> None:
        super().__init__(lambda submit: models.script(submit))
        self._models = models

    async def start(self) -> Any:
        await self._models.gate.wait()
        if self._models.error is not None:
            raise self._models.error
        return await super().start()


@asynccontextmanager
async def serving(**specs: Any) -> AsyncGenerator[Models]:
    models = Models(**specs)
    await models.registry.start()
    async with models.client:
        yield models
    await models.registry.close()
    assert all(runtime.num_closes for runtimes in models.made.values() for runtime in runtimes)


@live
async def test_every_dialect_loads_the_model_that_it_names():
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {**CHAT, "max_tokens": 5}),
        ("/api/chat", {**CHAT, "stream": False}),
        ("/api/generate", {"prompt": "hi", "stream": False}),
        ("/completion", {"prompt": "hi"}),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
        ("/tokenize", {"content": "hi"}),
        ("/detokenize", {"tokens": [104]}),
        ("/apply-template", CHAT),
        ("/v1/chat/completions/input_tokens", CHAT),
        ("/v1/messages/count_tokens", CHAT),
        ("/v1/embeddings", {"input": "hi"}),
        ("/embedding", {"content": "hi"}),
        ("/api/embed", {"input": "hi"}),
        ("/api/embeddings", {"prompt": "hi"}),
    ]
    async with serving() as models:
        for number, (path, body) in enumerate(asked):
            name = "ab"[number % 2]
            models.advance(60)
            response = await models.client.post(path, json={**body, "model": name})
            assert response.status_code == 200, (path, response.text)
            assert await models.states() == {"a": "unloaded", "b": "unloaded", name: "loaded"}


@live
async def test_server_is_not_ready_until_its_first_models_are_loaded():
    models = Models(loads_at_start=True)
    models.gate.clear()
    async with models.client:
        starting = asyncio.ensure_future(models.registry.start())
        for path in ("/health", "/v1/models"):
            response = await models.client.get(path)
            assert (response.status_code, response.json()["error"]["code"]) == (503, "model_not_loaded")
        refused = await models.client.post("/v1/completions", json={"model": "a", "prompt": "hi"})
        assert refused.status_code == 503
        models.gate.set()
        await starting
        assert await models.states() == {"a": "loaded", "b": "unloaded"}, "b does not fit beside a"
        assert (await models.client.get("/health")).json()["status"] == "ok"
    await models.registry.close()


@live
async def test_list_says_what_is_loaded_and_what_it_takes():
    async with serving(keep_alive_s=300) as models:
        await models.client.post("/models/load", json={"model": "a", "wait": True})
        loaded, unloaded = (await models.client.get("/models")).json()["data"]
        assert loaded["status"] == {
            "value": "loaded",
            "pinned": False,
            "expires_in_s": 300,
            "waiting": 0,
            "memory": {"total": 60, "weights": 40, "kv": 15, "compute": 5, "cache": 0, "adapters": 0},
        }
        assert (loaded["max_model_len"], loaded["meta"]["n_params"], loaded["created"]) == (2048, 135, 1700000000)
        assert unloaded["status"] == {"value": "unloaded", "pinned": False, "waiting": 0}
        assert (unloaded["path"], unloaded["created"], "meta" in unloaded) == ("/m/b", 7, False)
        one = (await models.client.get("/v1/models/b")).json()
        assert one == unloaded
        anthropic = await models.client.get("/v1/models", headers={"anthropic-version": "2023-06-01"})
        assert [entry["id"] for entry in anthropic.json()["data"]] == ["a", "b"]


@live
async def test_loading_goes_on_behind_the_reply_and_can_be_looked_at():
    async with serving() as models:
        models.gate.clear()
        assert (await models.client.post("/models/load", json={"model": "a"})).json() == {"success": True}
        await models.until_state(a="loading")
        assert (await models.client.get("/health")).status_code == 200
        models.gate.set()
        await models.until_state(a="loaded")
        assert (await models.client.post("/models/unload", json={"model": "a"})).json() == {"success": True}
        await models.until_state(a="unloaded")


@live
async def test_load_that_fails_says_why():
    async with serving() as models:
        models.error = ModelFileInvalid("the file lies")
        waited = await models.client.post("/models/load", json={"model": "a", "wait": True})
        assert (waited.status_code, waited.json()["error"]["code"]) == (500, "model_file_invalid")
        (entry, _) = (await models.client.get("/models")).json()["data"]
        assert entry["status"] == {
            "value": "unloaded",
            "failed": True,
            "error": "the file lies",
            "pinned": False,
            "waiting": 0,
        }
        asked = await models.client.post("/v1/completions", json={"model": "a", "prompt": "hi"})
        assert asked.json()["error"]["message"] == "the file lies"


@live
async def test_unknown_names_and_missing_ones():
    async with serving() as models:
        for verb in ("load", "unload"):
            unknown = await models.client.post(f"/models/{verb}", json={"model": "c"})
            assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
            missing = await models.client.post(f"/models/{verb}", json={})
            assert (missing.status_code, missing.json()["error"]["param"]) == (400, "model")
        unnamed = await models.client.post("/v1/completions", json={"prompt": "hi"})
        assert (unnamed.status_code, unnamed.json()["error"]["param"]) == (400, "model")


@live
async def test_looking_loads_nothing():
    async with serving() as models:
        for path in ("/props?model=a", "/slots?model=a"):
            response = await models.client.get(path)
            assert (response.status_code, response.json()["error"]["code"]) == (503, "model_not_loaded")
        for path in ("/v1/models/a", "/health", "/metrics", "/cache", "/api/ps", "/api/tags"):
            assert (await models.client.get(path)).status_code == 200
        assert models.made == {"a": [], "b": []}


@live
async def test_metrics_outlive_the_model():
    async with serving() as models:
        await models.client.post("/v1/completions", json={"model": "a", "prompt": "hi"})
        await models.client.post("/models/unload", json={"model": "a", "wait": True})
        lines = (await models.client.get("/metrics")).text.splitlines()
        for line in (
            'stoker_model_ready{model="a"} 0.0',
            'stoker_requests_total{finish_reason="stop",key="",model="a"} 1.0',
            'stoker_model_loads_total{model="a"} 1.0',
            'stoker_model_loads_total{model="b"} 0.0',
            'stoker_model_unloads_total{model="a",reason="asked"} 1.0',
            'stoker_model_planned_bytes{model="a"} 0.0',
        ):
            assert line in lines


@live
async def test_model_stays_until_its_stream_has_been_sent():
    async with serving() as models:
        gate = asyncio.Event()
        models.script = held_open(gate)
        client = RawClient(models.app, "/v1/completions", {"model": "a", "prompt": "hi", "stream": True})
        await client.next_body()
        other = asyncio.ensure_future(models.client.post("/v1/completions", json={"model": "b", "prompt": "hi"}))
        models.advance(60)
        await until(lambda: models.registry.find("b").num_waiting > 0)
        assert (await models.states())["a"] == "loaded"
        models.script = lambda submit: ["x"]
        gate.set()
        await client.task
        models.advance(60)
        assert (await other).status_code == 200
        assert await models.states() == {"a": "unloaded", "b": "loaded"}


@live
async def test_client_that_leaves_its_stream_holds_the_model_no_longer():
    async with serving() as models:
        models.script = held_open(asyncio.Event())
        client = RawClient(models.app, "/v1/completions", {"model": "a", "prompt": "hi", "stream": True})
        await client.next_body()
        client.leave()
        await client.task
        await models.client.post("/models/unload", json={"model": "a", "wait": True})
        assert (await models.states())["a"] == "unloaded"


@live
async def test_client_that_leaves_while_its_model_loads_waits_no_longer():
    async with serving() as models:
        models.gate.clear()
        client = RawClient(models.app, "/v1/completions", {"model": "a", "prompt": "hi"})
        await until(lambda: models.registry.find("a").num_waiting > 0)
        client.leave()
        await client.task
        assert models.registry.find("a").num_waiting == 0
        models.gate.set()


@live
async def test_response_in_the_background_keeps_its_model():
    async with serving() as models:
        gate = asyncio.Event()
        models.script = held_open(gate)
        body = {"model": "a", "input": "hi", "background": True}
        created = (await models.client.post("/v1/responses", json=body)).json()
        await models.client.post("/models/unload", json={"model": "a"})
        assert (await models.states())["a"] == "loaded"
        gate.set()
        await models.until_state(a="unloaded")
        done = (await models.client.get(f"/v1/responses/{created['id']}")).json()
        assert done["status"] == "completed"


@live
async def test_keep_alive_of_a_request():
    async with serving(keep_alive_s=300) as models:
        chat = {**CHAT, "model": "a", "stream": False}
        (await models.client.post("/api/chat", json={**chat, "keep_alive": "1h"})).raise_for_status()
        (running,) = (await models.client.get("/api/ps")).json()["models"]
        assert (running["name"], running["size"]) == ("a:latest", 60)
        assert (datetime.fromisoformat(running["expires_at"]) - datetime.now(UTC)).total_seconds() > 3000
        assert models.registry.find("a").expires_in_s == 3600
        await models.client.post("/api/embed", json={"model": "a", "input": "hi", "keep_alive": -1})
        (running,) = (await models.client.get("/api/ps")).json()["models"]
        assert running["expires_at"] > "2300"
        last = {"model": "a", "prompt": "hi", "keep_alive": 0}
        assert (await models.client.post("/api/generate", json=last)).status_code == 200
        await models.until_state(a="unloaded")
        assert (await models.client.get("/api/ps")).json() == {"models": []}


@live
async def test_only_who_may_administer_says_how_long_a_model_stays():
    keys = ServerConfig(api_key="alice:sk-alice", admin_key="sk-root")
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/api/chat", CHAT),
        ("/api/generate", {"prompt": "hi"}),
        ("/api/generate", {}),
        ("/api/embed", {"input": "hi"}),
        ("/api/embeddings", {"prompt": "hi"}),
    ]
    async with serving(keep_alive_s=300) as models:
        transport = httpx.ASGITransport(app=create_app(models.registry, keys))
        alice, root = (
            httpx.AsyncClient(transport=transport, base_url="http://test", headers={"x-api-key": key})
            for key in ("sk-alice", "sk-root")
        )
        for path, body in asked:
            for keep_alive in ("1h", 0) if body else ("1h",):
                sent = {**body, "model": "a", "stream": False, "keep_alive": keep_alive}
                assert (await alice.post(path, json=sent)).status_code == 200
                assert models.registry.find("a").expires_in_s == 300, path
            assert (await alice.post(path, json={"model": "a", **body, "keep_alive": "soon"})).status_code == 400
        for path in ("/api/chat", "/api/generate"):
            assert (await alice.post(path, json={"model": "a", "keep_alive": 0})).status_code == 403
        assert len(models.made["a"]) == 1, "it was there all the time"
        await root.post("/api/chat", json={**CHAT, "model": "a", "stream": False, "keep_alive": "1h"})
        assert models.registry.find("a").expires_in_s == 3600
        await alice.post("/api/chat", json={**CHAT, "model": "a", "stream": False, "keep_alive": "1m"})
        assert models.registry.find("a").expires_in_s == 3600
        assert (await root.post("/api/generate", json={"model": "a", "keep_alive": 0})).status_code == 200
        await models.until_state(a="unloaded")


@live
async def test_empty_prompt_loads_and_with_keep_alive_0_unloads():
    async with serving() as models:
        for path in ("/api/generate", "/api/chat"):
            loaded = (await models.client.post(path, json={"model": "a:latest", "keep_alive": "2m"})).json()
            assert (loaded["done_reason"], loaded["model"]) == ("load", "a:latest")
            assert models.registry.find("a").expires_in_s == 120
            for _ in range(2):
                unloaded = (await models.client.post(path, json={"model": "a:latest", "keep_alive": 0})).json()
                assert (unloaded["done_reason"], unloaded["done"]) == ("unload", True)
            await models.until_state(a="unloaded")
        assert len(models.made["a"]) == 2, "nothing is loaded in order to be unloaded"


@live
async def test_news_of_models_are_a_stream():
    async with serving() as models:
        client = RawClient(models.app, "/models/sse", {})
        client._scope["method"] = "GET"
        await until(lambda: bool(models.registry.events._followers))
        await models.client.post("/models/load", json={"model": "a", "wait": True})
        await models.client.post("/models/unload", json={"model": "a", "wait": True})
        news = [msgspec.json.decode((await client.next_body()).removeprefix(b"data: ")) for _ in range(4)]
        stages = ["measure", "make_room", "load"]
        memory = {"total": 60, "weights": 40, "kv": 15, "compute": 5, "cache": 0, "adapters": 0}
        assert [event["data"] for event in news] == [
            {"status": "loading", "progress": {"stages": stages, "current": "measure"}},
            {"status": "loading", "progress": {"stages": stages, "current": "load"}, "memory": memory},
            {"status": "loaded"},
            {"status": "unloaded", "reason": "asked"},
        ]
        assert {(event["model"], event["event"]) for event in news} == {("a", "model_status")}
        client.leave()
        await client.task
        assert not models.registry.events._followers
