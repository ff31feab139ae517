"""The JSON of the health endpoint, and that endpoint; types only."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from stoker.server.error_types import ErrorDetail
from stoker.server.fields import Endpoint


class ModelHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one model's engine."""

    id: str
    state: str
    num_restarts: int
    num_running: int | UnsetType = UNSET
    num_waiting: int | UnsetType = UNSET
    kv_used: int | UnsetType = UNSET
    kv_retained: int | UnsetType = UNSET
    kv_capacity: int | UnsetType = UNSET
    replicas: list[ModelHealth] | UnsetType = UNSET
    """Of a model that has several engines: each of them; its id is its number."""


class HealthReply(msgspec.Struct, frozen=True, kw_only=True):
    """`status` is `ok`, or the state of the first model that is not ready."""

    status: str
    models: list[ModelHealth]
    error: ErrorDetail | UnsetType = UNSET


HEALTH = Endpoint(
    api="Stoker",
    method="GET",
    path="/health",
    aliases=("/v1/health",),
    summary="Says whether the models can answer now: 200 if all of them can, else 503.",
    reply=HealthReply,
)
