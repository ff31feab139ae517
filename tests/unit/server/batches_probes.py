"""Probes for every honoured field of `/v1/batches` and `/v1/messages/batches`."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from stoker.server.batches.batches import Batches
from stoker.server.batches.files import FileStore
from stoker.server.config import ServerConfig
from stoker.server.transport.app import create_app
from tests.unit.server.fake_runtime import FakeRuntime, registry_of, served
from tests.unit.server.field_probes import EndpointProbes, Exchange, Probe, endpoint, refused

_FORM: Any = {"files": {"file": ("f", b"{}")}, "data": {"purpose": "batch"}}


class BatchProbes(EndpointProbes):
    """On a server with the files FILE and OTHER, which hold no batch."""

    def send(self, fields: Mapping[str, Any] = MappingProxyType({}), probe: Probe | None = None) -> Exchange:
        runtime = FakeRuntime()
        response = asyncio.run(_send(self.endpoint.path, {**self.body, **fields}, runtime))
        return Exchange(response, runtime)


async def _send(path: str, body: Mapping[str, Any], runtime: FakeRuntime) -> httpx.Response:
    with tempfile.TemporaryDirectory() as folder:
        batches = Batches(FileStore(Path(folder), 1))
        app = create_app(registry_of(served(runtime)), ServerConfig(), parts=[batches])
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            ids = {name: (await client.post("/v1/files", **_FORM)).json()["id"] for name in ("FILE", "OTHER")}
            named = {key: ids.get(value, value) if isinstance(value, str) else value for key, value in body.items()}
            response = await client.post(path, json=named)
            response.headers["x-other"] = ids["OTHER"]
        await batches.close()
        return response


def _says(name: str, value: Any) -> Any:
    return lambda exchange: exchange.response.json().get(name) == value


PROBES = [
    BatchProbes(
        endpoint("POST", "/v1/batches"),
        {"input_file_id": "FILE", "endpoint": "/v1/completions"},
        {
            "input_file_id": Probe(
                "OTHER",
                lambda exchange: exchange.response.json()["input_file_id"] == exchange.response.headers["x-other"],
            ),
            "endpoint": Probe("/v1/embeddings", _says("endpoint", "/v1/embeddings")),
            "completion_window": Probe("1h", refused),
            "metadata": Probe({"a": "b"}, _says("metadata", {"a": "b"})),
        },
    ),
    BatchProbes(
        endpoint("POST", "/v1/messages/batches"),
        {"requests": [{"custom_id": "a", "params": {}}]},
        {
            "requests": Probe(
                [{"custom_id": "a", "params": {}}, {"custom_id": "b", "params": {}}],
                lambda exchange: exchange.response.json()["request_counts"]["processing"] == 2,
            )
        },
    ),
]
