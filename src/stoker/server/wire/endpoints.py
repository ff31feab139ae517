"""The whole HTTP surface in one list: every endpoint of every API, for the reference page and `/openapi.json`."""

from __future__ import annotations

from typing import Any

from stoker.server.wire import (
    adapters,
    anthropic_fields,
    embeddings_fields,
    models_fields,
    native_fields,
    ollama_fields,
    openai_fields,
    openai_responses_fields,
)
from stoker.server.wire.fields import Endpoint
from stoker.server.wire.health import HEALTH
from stoker.server.wire.metrics import METRICS

OPENAPI = Endpoint(
    api="Stoker",
    method="GET",
    path="/openapi.json",
    summary="Describes this server.",
    reply=dict[str, Any],
)

ENDPOINTS: tuple[Endpoint, ...] = (
    *openai_fields.ENDPOINTS,
    *openai_responses_fields.ENDPOINTS,
    *anthropic_fields.ENDPOINTS,
    *ollama_fields.ENDPOINTS,
    *native_fields.ENDPOINTS,
    *embeddings_fields.ENDPOINTS,
    *models_fields.ENDPOINTS,
    *adapters.ENDPOINTS,
    HEALTH,
    METRICS,
    OPENAPI,
)
