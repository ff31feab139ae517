"""The endpoints that load and unload models, and what becomes of the fields of their bodies; they do nothing."""

from __future__ import annotations

from stoker.server.fields import Endpoint, FieldTable, Ignored, honoured
from stoker.server.models.types import LoadRequest, ModelNews, ModelsDone, UnloadRequest

_API = "native"
_OWN_OPTIONS: FieldTable = {"extra_args": Ignored("how a model is loaded is said when the server starts")}

LOAD_FIELDS: FieldTable = honoured(LoadRequest, _OWN_OPTIONS)
UNLOAD_FIELDS: FieldTable = honoured(UnloadRequest)

LOAD = Endpoint(
    api=_API,
    method="POST",
    path="/models/load",
    aliases=("/v1/models/load",),
    summary="Loads a model, or replaces one that is loaded; others leave for it if they must.",
    request=LoadRequest,
    fields=LOAD_FIELDS,
    reply=ModelsDone,
    is_admin=True,
)
UNLOAD = Endpoint(
    api=_API,
    method="POST",
    path="/models/unload",
    aliases=("/v1/models/unload",),
    summary="Unloads a model when its requests have ended.",
    request=UnloadRequest,
    fields=UNLOAD_FIELDS,
    reply=ModelsDone,
    is_admin=True,
)
MODELS_SSE = Endpoint(
    api=_API,
    method="GET",
    path="/models/sse",
    aliases=("/v1/models/sse",),
    summary="Follows models as they are loaded and unloaded.",
    event=ModelNews,
)

ENDPOINTS = (LOAD, UNLOAD, MODELS_SSE)
