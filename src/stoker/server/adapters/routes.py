"""`/lora-adapters`: who is called in which order, and nothing else."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from stoker.engine.config import AdapterSpec
from stoker.engine.protocol import ChangeAdapters
from stoker.errors import InvalidInput
from stoker.runtime.registry import Registry
from stoker.server.adapters.types import (
    CHANGE_ADAPTERS,
    DELETE_ADAPTER,
    LIST_ADAPTERS,
    LOAD_ADAPTER_FIELDS,
    AdaptersChanged,
    LoadAdapterRequest,
)
from stoker.server.config import ServerConfig
from stoker.server.errors import json_response
from stoker.server.fields import decode_request
from stoker.server.leasing import loaded
from stoker.server.request.adapters import adapter_entries, load_request, scales_request
from stoker.server.routing import routes_of
from stoker.server.transport.connection import read_body, while_connected


class AdapterRoutes:
    """Lists, loads, weighs and removes the LoRA adapters of a model."""

    def __init__(self, registry: Registry, config: ServerConfig) -> None:
        self._registry = registry
        self._config = config

    def routes(self) -> list[BaseRoute]:
        return [
            *routes_of(LIST_ADAPTERS, self.list_adapters),
            *routes_of(CHANGE_ADAPTERS, self.change),
            *routes_of(DELETE_ADAPTER, self.delete),
        ]

    async def list_adapters(self, request: Request) -> Response:
        runtime = loaded(self._registry, request.query_params.get("model")).runtime
        loaded_now = await while_connected(request.receive, runtime.ask(ChangeAdapters()))
        return json_response(adapter_entries(loaded_now.adapters))

    async def change(self, request: Request) -> Response:
        body = await read_body(request, self._config)
        if body.lstrip().startswith(b"["):
            return await self._change(request, None, scales=scales_request(_decoded_list(body)))
        wire = decode_request(body, LOAD_ADAPTER_FIELDS, LoadAdapterRequest)
        return await self._change(request, wire.model, load=load_request(wire))

    async def delete(self, request: Request) -> Response:
        return await self._change(request, None, unload=request.path_params["name"])

    async def _change(
        self,
        request: Request,
        model: str | None,
        *,
        load: AdapterSpec | None = None,
        unload: str | None = None,
        scales: dict[int, float] | None = None,
    ) -> Response:
        asked = model or request.query_params.get("model")
        change = self._registry.change_adapters(asked, load=load, unload=unload, scales=scales)
        return json_response(AdaptersChanged(adapters=adapter_entries(await while_connected(request.receive, change))))


def _decoded_list(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the request body is not valid JSON: {error}") from None
