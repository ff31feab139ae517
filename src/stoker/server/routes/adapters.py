"""`/lora-adapters`: who is called in which order, and nothing else."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from stoker.engine.protocol import AdapterCard
from stoker.errors import InvalidInput
from stoker.runtime.base import Runtime
from stoker.runtime.registry import Registry
from stoker.server.config import ServerConfig
from stoker.server.connection import read_body, while_connected
from stoker.server.errors import json_response
from stoker.server.leasing import leased, loaded
from stoker.server.routing import routes_of
from stoker.server.translate.adapters import adapter_entries, load_request, scales_request
from stoker.server.wire.adapters import (
    CHANGE_ADAPTERS,
    DELETE_ADAPTER,
    LIST_ADAPTERS,
    LOAD_ADAPTER_FIELDS,
    AdaptersChanged,
    LoadAdapterRequest,
)
from stoker.server.wire.fields import decode_request


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
        cards = await while_connected(request.receive, runtime.change_adapters())
        return json_response(adapter_entries(cards))

    async def change(self, request: Request) -> Response:
        body = await read_body(request, self._config)
        if body.lstrip().startswith(b"["):
            scales = scales_request(_decoded_list(body))
            runtime = await self._asked_for(request, None)
            cards = await while_connected(request.receive, runtime.change_adapters(scales=scales))
        else:
            wire = decode_request(body, LOAD_ADAPTER_FIELDS, LoadAdapterRequest)
            spec = load_request(wire)
            runtime = await self._asked_for(request, wire.model)
            cards = await while_connected(request.receive, runtime.change_adapters(load=spec))
        return _changed(cards)

    async def delete(self, request: Request) -> Response:
        name: str = request.path_params["name"]
        runtime = loaded(self._registry, request.query_params.get("model")).runtime
        return _changed(await while_connected(request.receive, runtime.change_adapters(unload=name)))

    async def _asked_for(self, request: Request, model: str | None) -> Runtime:
        return (await leased(request, self._registry, model or request.query_params.get("model"))).runtime


def _changed(cards: list[AdapterCard]) -> Response:
    return json_response(AdaptersChanged(adapters=adapter_entries(cards)))


def _decoded_list(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the request body is not valid JSON: {error}") from None
