"""`GET /health`: whether the served models can answer now, by their last reports; it sends nothing to the engines.

`GET /version` names the version of the server, as in vLLM.
"""

from __future__ import annotations

from importlib.metadata import version

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

from stoker.engine.health import Health
from stoker.errors import ModelNotLoaded
from stoker.runtime.registry import ServedModel
from stoker.server.access.control import HEALTH_PATHS
from stoker.server.api import Call, Router
from stoker.server.error_types import ErrorDetail
from stoker.server.errors import error_body, json_response

router = Router(api="Stoker")


class ModelHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one model's engine."""

    id: str
    state: str
    num_restarts: int
    last_error: str | UnsetType = UNSET
    """Why the engine is not ready, if an error is the reason."""
    progress: float | UnsetType = UNSET
    """Loaded part of the weights, from 0 to 1; present while the model loads, if it is known."""
    num_running: int | UnsetType = UNSET
    num_waiting: int | UnsetType = UNSET
    kv_used: int | UnsetType = UNSET
    kv_retained: int | UnsetType = UNSET
    kv_capacity: int | UnsetType = UNSET
    prompt_tokens: int | UnsetType = UNSET
    """Number of prompt tokens since the start of the engine, including cached ones."""
    cached_tokens: int | UnsetType = UNSET
    node: str | UnsetType = UNSET
    """Address of the machine on which a replica runs, if that is another machine."""
    kv_events: str | UnsetType = UNSET
    """Endpoint at which a replica of a cluster publishes which blocks of KV cache it holds."""
    replicas: list[ModelHealth] | UnsetType = UNSET
    """The engines (replicas) of a model that has several; the id of an engine is its number."""


class HealthReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of `GET /health`. `status` is `ok`, or the state of the first model that is not ready."""

    status: str
    models: list[ModelHealth]
    error: ErrorDetail | UnsetType = UNSET


class VersionReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply of `GET /version`."""

    version: str


@router.endpoint(
    "GET",
    HEALTH_PATHS[0],
    "Health check: 200 if all models can answer now, else 503.",
    aliases=HEALTH_PATHS[1:],
    reply=HealthReply,
)
async def health(call: Call[None]) -> Response:
    """200 if all loaded models are ready, else 503. Models that are loaded only on demand do not count."""
    healths = [(served, served.runtime.health()) for served in call.registry.models]
    models = [_model_health(served.model_id, health) for served, health in healths]
    if call.registry.is_starting:
        return _not_ready(HealthReply(status="starting", models=models, error=_error_of("the models are starting")))
    ailing = next(((served, health) for served, health in healths if not health.is_ready), None)
    if ailing is None:
        return json_response(HealthReply(status="ok", models=models))
    reply = HealthReply(status=ailing[1].state, models=models, error=_error(*ailing))
    return _not_ready(reply)


@router.endpoint("GET", "/version", "Shows the version of Stoker.", reply=VersionReply)
async def show_version(_call: Call[None]) -> Response:
    return json_response(VersionReply(version=version("stoker")))


def _not_ready(reply: HealthReply) -> Response:
    return json_response(reply, status=503, headers={"Retry-After": "1"})


def _error(served: ServedModel, health: Health) -> ErrorDetail:
    reason = f": {health.last_error}" if health.last_error else ""
    return _error_of(f"the model {served.model_id} is {health.state}{reason}")


def _error_of(message: str) -> ErrorDetail:
    return error_body(ModelNotLoaded(message)).error


def _model_health(name: str, health: Health) -> ModelHealth:
    base = ModelHealth(
        id=name,
        state=health.state,
        num_restarts=health.num_restarts,
        last_error=UNSET if health.is_ready else health.last_error or UNSET,
        progress=UNSET if health.loaded_part is None or health.is_ready else round(health.loaded_part, 4),
        node=health.node or UNSET,
        kv_events=health.kv_events or UNSET,
    )
    if health.replicas:
        replicas = [_model_health(str(number), replica) for number, replica in health.replicas.items()]
        base = msgspec.structs.replace(base, replicas=replicas)
    if health.heartbeat is None:
        return base
    beat = health.heartbeat
    return msgspec.structs.replace(
        base,
        num_running=beat.num_running,
        num_waiting=beat.num_waiting,
        kv_used=beat.kv_used,
        kv_retained=beat.kv_retained,
        kv_capacity=beat.kv_capacity,
        prompt_tokens=beat.prompt_tokens,
        cached_tokens=beat.cached_tokens,
    )
