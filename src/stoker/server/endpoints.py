"""The whole HTTP surface: the routers of every API, and `GET /openapi.json`, which describes all their endpoints."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.responses import Response

from stoker.server import adapters, health, ui, ui_store
from stoker.server.api import Call, Endpoint, Router
from stoker.server.batches import message_routes as message_batches
from stoker.server.batches import routes as batches
from stoker.server.dialects.anthropic import routes as anthropic
from stoker.server.dialects.llamacpp import routes as llamacpp
from stoker.server.dialects.ollama import models as ollama_models
from stoker.server.dialects.ollama import routes as ollama
from stoker.server.dialects.openai import routes as openai
from stoker.server.dialects.responses import conversation_routes as conversations
from stoker.server.dialects.responses import routes as responses
from stoker.server.embeddings import routes as embeddings
from stoker.server.live import routes as live
from stoker.server.models import routes as models
from stoker.server.observe import exposition
from stoker.server.openapi import openapi_document
from stoker.server.sessions import routes as sessions
from stoker.server.transcription import routes as transcription

router = Router(api="Stoker")


@router.endpoint("GET", "/openapi.json", "Describes this server.", reply=dict[str, Any])
async def describe(_call: Call[None]) -> Response:
    return Response(_document(), media_type="application/json")


ROUTERS: tuple[Router, ...] = (
    openai.router,
    models.lists,
    responses.router,
    conversations.router,
    transcription.router,
    batches.router,
    anthropic.router,
    message_batches.router,
    ollama.router,
    ollama_models.router,
    llamacpp.router,
    embeddings.openai,
    embeddings.native,
    embeddings.rerank,
    embeddings.ollama,
    models.router,
    sessions.router,
    adapters.router,
    health.router,
    live.router,
    ui.router,
    ui_store.router,
    exposition.router,
    router,
)
"""Routers of all APIs, in the order of the documentation."""

ENDPOINTS: tuple[Endpoint, ...] = tuple(endpoint for router in ROUTERS for endpoint in router.endpoints)

AZURE_ENDPOINTS: tuple[tuple[str, str], ...] = tuple(
    (endpoint.method, endpoint.path)
    for endpoint in ENDPOINTS
    if endpoint.api == "OpenAI" and not endpoint.is_admin and endpoint.path.startswith("/v1/")
)
"""Method and path of the endpoints that Azure's paths reach too: those of OpenAI's API, and none of administration."""

OTHER_ENDPOINTS: tuple[tuple[str, str], ...] = tuple(
    (endpoint.method, path)
    for endpoint in ENDPOINTS
    if (endpoint.method, endpoint.path) not in AZURE_ENDPOINTS
    for path in endpoint.paths
)
"""Method and path of all other endpoints."""


@cache
def _document() -> bytes:
    return msgspec.json.encode(openapi_document(ENDPOINTS, version("stoker")))
