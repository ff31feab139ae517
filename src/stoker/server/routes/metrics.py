"""`GET /metrics`: Prometheus asks, and is told what the heartbeats and the requests have said. No model is asked."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from stoker.runtime.registry import Registry
from stoker.server.metric_aliases import with_aliases
from stoker.server.metrics import families
from stoker.server.routing import routes_of
from stoker.server.wire.metrics import METRICS


class MetricsRoutes:
    """The exposition; a registry of its own, so that several servers in one process do not mix."""

    def __init__(self, registry: Registry) -> None:
        self._exposed = CollectorRegistry(auto_describe=False)
        self._exposed.register(_Models(registry))

    def routes(self) -> list[BaseRoute]:
        return [*routes_of(METRICS, self.metrics)]

    async def metrics(self, _request: Request) -> Response:
        return Response(generate_latest(self._exposed), media_type=CONTENT_TYPE_LATEST)


class _Models(Collector):
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        return with_aliases(families(self._registry.models))

    def describe(self) -> Iterable[Metric]:
        """Nothing: the models cannot be asked before there is an event loop."""
        return ()
