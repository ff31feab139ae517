"""`/v1/models` in OpenAI's shape or in Anthropic's; loading and unloading as llama-server's router has it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from stoker.errors import InvalidInput, ModelNotFound, ModelNotLoaded
from stoker.runtime.registry import ModelStatus, Registry
from stoker.server.config import ServerConfig
from stoker.server.dialects.anthropic import writer as anthropic_reply
from stoker.server.dialects.ollama.names import own_name
from stoker.server.dialects.openai.fields import GET_MODEL, LIST_MODELS
from stoker.server.dialects.openai.types import ModelEntry, ModelList
from stoker.server.error_shapes import is_anthropic
from stoker.server.errors import json_response
from stoker.server.fields import decode_request
from stoker.server.models.entries import adapter_entries, model_entry, news_event
from stoker.server.models.fields import LOAD, LOAD_FIELDS, MODELS_SSE, UNLOAD, UNLOAD_FIELDS
from stoker.server.models.types import LoadRequest, ModelsDone, UnloadRequest
from stoker.server.routing import routes_of
from stoker.server.transport.connection import read_body, while_connected
from stoker.server.transport.sse import EventStream


class ModelRoutes:
    """The model endpoints, whose paths OpenAI's, Anthropic's and llama-server's APIs share."""

    def __init__(self, registry: Registry, config: ServerConfig) -> None:
        self._registry = registry
        self._config = config

    def routes(self) -> list[BaseRoute]:
        return [
            *routes_of(LOAD, self.load),
            *routes_of(UNLOAD, self.unload),
            *routes_of(MODELS_SSE, self.follow),
            *routes_of(LIST_MODELS, self.list_models),
            *routes_of(GET_MODEL, self.get_model),
        ]

    async def list_models(self, request: Request) -> Response:
        if request.query_params.get("reload") == "1":
            await self._registry.refresh()
        statuses = self._statuses()
        entries = [entry for status in statuses for entry in (model_entry(status), *adapter_entries(status))]
        return json_response(anthropic_reply.model_list(entries) if is_anthropic(request.scope) else ModelList(entries))

    async def get_model(self, request: Request) -> Response:
        name: str = request.path_params["model"]
        entry = self._find_adapter(name) or model_entry(self._find(name))
        return json_response(anthropic_reply.model_entry(entry) if is_anthropic(request.scope) else entry)

    def _find(self, name: str) -> ModelStatus:
        """Clients that know a model from `/api/tags` write `:latest` behind its name in the other APIs too."""
        try:
            return self._registry.find(name)
        except ModelNotFound:
            return self._registry.find(own_name(name))

    async def load(self, request: Request) -> Response:
        wire = decode_request(await read_body(request, self._config), LOAD_FIELDS, LoadRequest)
        loading = self._registry.load(
            _required(wire), source=wire.source or None, is_reload=bool(wire.reload), waits=bool(wire.wait)
        )
        await while_connected(request.receive, loading)
        return json_response(ModelsDone())

    async def unload(self, request: Request) -> Response:
        wire = decode_request(await read_body(request, self._config), UNLOAD_FIELDS, UnloadRequest)
        await while_connected(request.receive, self._registry.unload(_required(wire), waits=bool(wire.wait)))
        return json_response(ModelsDone())

    async def follow(self, _request: Request) -> EventStream:
        self._registry.events.check_room()
        events = self._news()
        return EventStream(events, events.aclose, self._config)

    def _find_adapter(self, name: str) -> ModelEntry | None:
        entries = (entry for status in self._registry.statuses() for entry in adapter_entries(status))
        return next((entry for entry in entries if name in (entry.id, *entry.aliases)), None) if ":" in name else None

    def _statuses(self) -> list[ModelStatus]:
        if self._registry.is_starting:
            raise ModelNotLoaded("the models are still loading")
        return self._registry.statuses()

    async def _news(self) -> AsyncGenerator[bytes, None]:
        async for event in self._registry.events.follow():
            yield news_event(event)


def _required(wire: UnloadRequest) -> str:
    if not wire.model:
        raise InvalidInput("`model` is missing", parameter="model")
    return wire.model
