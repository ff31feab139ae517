"""The whole HTTP surface in one list: every endpoint of every API, for the reference page and `/openapi.json`."""

from __future__ import annotations

from typing import Any

from stoker.server.adapters import types as adapters
from stoker.server.dialects.anthropic import fields as anthropic_fields
from stoker.server.dialects.llamacpp import fields as native_fields
from stoker.server.dialects.ollama import fields as ollama_fields
from stoker.server.dialects.openai import fields as openai_fields
from stoker.server.dialects.responses import fields as openai_responses_fields
from stoker.server.embeddings import fields as embeddings_fields
from stoker.server.fields import Endpoint
from stoker.server.health.types import HEALTH
from stoker.server.models import fields as models_fields
from stoker.server.observe.metrics_endpoint import METRICS

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
