"""`GET /health`: can the served models answer now?"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from stoker.engine.health import Health
from stoker.errors import ModelNotLoaded
from stoker.runtime.registry import Registry, ServedModel
from stoker.server.error_types import ErrorDetail
from stoker.server.errors import error_body, json_response
from stoker.server.health.types import HEALTH, HealthReply, ModelHealth
from stoker.server.routing import routes_of


class HealthRoutes:
    """Probes for people and load balancers. No model is asked anything."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def routes(self) -> list[BaseRoute]:
        return [*routes_of(HEALTH, self.health)]

    async def health(self, _request: Request) -> Response:
        """200 if all loaded models are ready, else 503. Models that are loaded when they are asked for do not count."""
        healths = [(served, served.runtime.health()) for served in self._registry.models]
        models = [_model_health(served.model_id, health) for served, health in healths]
        if self._registry.is_starting:
            return _not_ready(HealthReply(status="starting", models=models, error=_error_of("the models are starting")))
        ailing = next(((served, health) for served, health in healths if not health.is_ready), None)
        if ailing is None:
            return json_response(HealthReply(status="ok", models=models))
        reply = HealthReply(status=ailing[1].state, models=models, error=_error(*ailing))
        return _not_ready(reply)


def _not_ready(reply: HealthReply) -> Response:
    return json_response(reply, status=503, headers={"Retry-After": "1"})


def _error(served: ServedModel, health: Health) -> ErrorDetail:
    reason = f": {health.last_error}" if health.last_error else ""
    return _error_of(f"the model {served.model_id} is {health.state}{reason}")


def _error_of(message: str) -> ErrorDetail:
    return error_body(ModelNotLoaded(message)).error


def _model_health(name: str, health: Health) -> ModelHealth:
    base = ModelHealth(id=name, state=health.state, num_restarts=health.num_restarts)
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
    )
