"""Probes for every honoured field of the endpoints that load and unload models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import httpx

from stoker.models.progress import Progress
from stoker.runtime.base import Runtime
from stoker.runtime.registry import ModelSpec, Registry, ServedModel
from stoker.server.config import ServerConfig
from stoker.server.models.pulls import Pulls
from stoker.server.transport.app import create_app
from tests.unit.server.fake_runtime import FakeRuntime
from tests.unit.server.field_probes import EndpointProbes, Exchange, Probe, endpoint, refused

_BUSY_S = 0.5


class LifeProbes(EndpointProbes):
    """On a server with the models `tiny`, which is loaded and in use for a moment, and `other`.

    The reply says what was loaded, and what is when it comes.
    """

    def send(self, fields: Mapping[str, Any] = MappingProxyType({}), probe: Probe | None = None) -> Exchange:
        runtime = FakeRuntime()
        beside = {} if probe is None else probe.beside
        response = asyncio.run(_send(self.endpoint.path, {**self.body, **beside, **fields}, runtime))
        return Exchange(response, runtime)


async def _send(path: str, body: Mapping[str, Any], tiny: Runtime) -> httpx.Response:
    made: list[str] = []

    def spec(name: str, runtime: Runtime) -> ModelSpec:
        def make(_plan: object) -> Runtime:
            made.append(name)
            return runtime

        return ModelSpec(names=(name,), make=make, loads_at_start=name == "tiny")

    registry = Registry([spec("tiny", tiny), spec("other", FakeRuntime())])
    await registry.start()
    lease = await registry.lease("tiny")
    asyncio.get_running_loop().call_later(_BUSY_S, lease.close)
    transport = httpx.ASGITransport(app=create_app(registry, ServerConfig()))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.post(path, json=body)
    response.headers["x-states"] = ",".join(status.state for status in registry.statuses())
    await registry.load("tiny", waits=True)
    response.headers["x-made"] = ",".join(made)
    await registry.close()
    return response


class DownloadProbes(EndpointProbes):
    """On a server that finds models by itself, and downloads each in no time."""

    def send(self, fields: Mapping[str, Any] = MappingProxyType({}), probe: Probe | None = None) -> Exchange:
        runtime = FakeRuntime()
        return Exchange(asyncio.run(_download({**self.body, **fields}, runtime)), runtime)


async def _download(body: Mapping[str, Any], runtime: Runtime) -> httpx.Response:
    registry = Registry(discover=list)
    registry.adopt(ServedModel(("tiny",), runtime))
    app = create_app(registry, ServerConfig(), parts=[Pulls(_brought)])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        return await client.post("/models", json=body)


def _brought(model: str, *, progress: Progress) -> None:
    progress.close()


def _made(*names: str) -> Any:
    return lambda exchange: exchange.response.headers["x-made"] == ",".join(names)


def _left(*states: str) -> Any:
    return lambda exchange: exchange.response.headers["x-states"] == ",".join(states)


LOAD = LifeProbes(
    endpoint("POST", "/models/load"),
    {"model": "tiny"},
    {
        "model": Probe("nobody", refused),
        "wait": Probe(True, _left("loaded", "loaded"), beside={"model": "other"}),
        "reload": Probe(True, _made("tiny", "tiny"), beside={"wait": True}),
        "source": Probe("other", _made("tiny", "other"), beside={"wait": True}),
    },
)
UNLOAD = LifeProbes(
    endpoint("POST", "/models/unload"),
    {"model": "tiny"},
    {
        "model": Probe("nobody", refused),
        "wait": Probe(True, _left("unloaded", "unloaded")),
    },
)

DOWNLOAD = DownloadProbes(endpoint("POST", "/models"), {"model": "smollm2"}, {"model": Probe("no-such-model", refused)})

PROBES = (LOAD, UNLOAD, DOWNLOAD)
