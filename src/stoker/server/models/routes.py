"""The endpoints of models: lists for OpenAI's and Anthropic's clients; loading as in llama-server's router."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response

from stoker.errors import ModelNotFound, ModelNotLoaded
from stoker.models.naming import own_name
from stoker.models.store import resolve
from stoker.runtime.registry import ModelStatus, Registry
from stoker.server.api import Call, Router
from stoker.server.dialects.anthropic import writer as anthropic_reply
from stoker.server.error_shapes import is_anthropic
from stoker.server.errors import json_response
from stoker.server.fields import required
from stoker.server.models.downloads import Downloads
from stoker.server.models.entries import adapter_entries, download_entry, model_entry, news_event
from stoker.server.models.local_models import LocalModels, look_again
from stoker.server.models.pulls import Pulls
from stoker.server.models.types import (
    DOWNLOAD_FIELDS,
    LOAD_FIELDS,
    UNLOAD_FIELDS,
    DownloadRequest,
    LoadRequest,
    ModelEntry,
    ModelList,
    ModelNews,
    ModelsDone,
    UnloadRequest,
)
from stoker.server.transport.sse import EventStream

lists = Router(api="OpenAI")
router = Router(api="native")

_LIST = "/models"
"""Path of llama-server's own list, which also contains downloads; OpenAI's contains only models that can answer."""


@lists.endpoint(
    "GET",
    "/v1/models",
    "Lists the served models, loaded or not. With `reload=1` the server looks for new models first.",
    aliases=(_LIST,),
    query={"reload": int},
    reply=ModelList,
)
async def list_models(call: Call[None]) -> Response:
    if call.query.get("reload") == "1":
        await call.registry.refresh()
    statuses = _statuses(call.registry)
    models = await call.off_loop(lambda: [model_entry(status) for status in statuses])
    pairs = zip(models, statuses, strict=True)
    entries = [entry for model, status in pairs for entry in (model, *adapter_entries(status))]
    if call.request.url.path == _LIST:
        entries += [download_entry(name, state) for name, state in _downloads(call).states.items()]
    wants_anthropic = is_anthropic(call.request.scope)
    return json_response(anthropic_reply.model_list(entries) if wants_anthropic else ModelList(entries))


@lists.endpoint(
    "GET",
    "/v1/models/{model:path}",  # ids may contain slashes
    "Shows a served model.",
    aliases=("/models/{model:path}",),
    reply=ModelEntry,
)
async def get_model(call: Call[None]) -> Response:
    name = call.path_parameter("model")
    entry = _find_adapter(call.registry, name)
    if entry is None:
        entry = await call.off_loop(model_entry, _find(call.registry, name))
    return json_response(anthropic_reply.model_entry(entry) if is_anthropic(call.request.scope) else entry)


@router.endpoint(
    "POST",
    _LIST,
    "Downloads a model in the background. `GET /models/sse` shows the progress.",
    body=DownloadRequest,
    fields=DOWNLOAD_FIELDS,
    reply=ModelsDone,
    is_admin=True,
)
async def download(call: Call[DownloadRequest]) -> Response:
    await call.wait(_downloads(call).begin(required(call.body.model, "model")))
    return json_response(ModelsDone())


@router.endpoint(
    "DELETE",
    _LIST,
    "Deletes a downloaded model, or gives its download up.",
    query={"model": str},
    reply=ModelsDone,
    is_admin=True,
)
async def delete(call: Call[None]) -> Response:
    name = required(call.query.get("model"), "model")
    if not await _downloads(call).cancel(name):
        await call.off_loop(LocalModels(call.registry).delete, own_name(name))
        await look_again(call.registry, own_name(name))
    return json_response(ModelsDone())


@router.endpoint(
    "POST",
    "/models/load",
    "Loads a model, or reloads it; others are unloaded to make room if needed.",
    aliases=("/v1/models/load",),
    body=LoadRequest,
    fields=LOAD_FIELDS,
    reply=ModelsDone,
    is_admin=True,
)
async def load(call: Call[LoadRequest]) -> Response:
    wire = call.body
    loading = call.registry.load(
        required(wire.model, "model"), source=wire.source or None, is_reload=bool(wire.reload), waits=bool(wire.wait)
    )
    await call.wait(loading)
    return json_response(ModelsDone())


@router.endpoint(
    "POST",
    "/models/unload",
    "Unloads a model when its requests have ended, or gives its download up.",
    aliases=("/v1/models/unload",),
    body=UnloadRequest,
    fields=UNLOAD_FIELDS,
    reply=ModelsDone,
    is_admin=True,
)
async def unload(call: Call[UnloadRequest]) -> Response:
    name = required(call.body.model, "model")
    if not await _downloads(call).cancel(name):
        await call.wait(call.registry.unload(name, waits=bool(call.body.wait)))
    return json_response(ModelsDone())


@router.endpoint(
    "GET",
    "/models/sse",
    "Streams events as models are loaded and unloaded.",
    aliases=("/v1/models/sse",),
    event=ModelNews,
)
async def follow(call: Call[None]) -> EventStream:
    call.registry.events.check_room()
    events = _news(call.registry)
    return EventStream(events, events.aclose, call.config)


def _find(registry: Registry, name: str) -> ModelStatus:
    """Finds a model with or without `:latest`, which clients that know it from `/api/tags` append in other APIs too."""
    try:
        return registry.find(name)
    except ModelNotFound:
        return registry.find(own_name(name))


def _find_adapter(registry: Registry, name: str) -> ModelEntry | None:
    entries = (entry for status in registry.statuses() for entry in adapter_entries(status))
    return next((entry for entry in entries if name in (entry.id, *entry.aliases)), None) if ":" in name else None


def _statuses(registry: Registry) -> list[ModelStatus]:
    if registry.is_starting:
        raise ModelNotLoaded("the models are still loading")
    return registry.statuses()


async def _news(registry: Registry) -> AsyncGenerator[bytes, None]:
    async for event in registry.events.follow():
        yield news_event(event)


def _downloads(call: Call[Any]) -> Downloads:
    server = call.server
    return server.part(Downloads, lambda: Downloads(server.part(Pulls, lambda: Pulls(resolve)), server.registry))
