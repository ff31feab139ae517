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
from stoker.server.observe.metric_aliases import with_aliases
from stoker.server.observe.metrics import families
from stoker.server.observe.metrics_endpoint import METRICS
from stoker.server.observe.response_counts import ResponseCounts
from stoker.server.routing import routes_of


class MetricsRoutes:
    """The exposition; a registry of its own, so that several servers in one process do not mix."""

    def __init__(self, registry: Registry, counts: ResponseCounts) -> None:
        self._exposed = CollectorRegistry(auto_describe=False)
        self._exposed.register(_Server(registry, counts))

    def routes(self) -> list[BaseRoute]:
        return [*routes_of(METRICS, self.metrics)]

    async def metrics(self, _request: Request) -> Response:
        return Response(generate_latest(self._exposed), media_type=CONTENT_TYPE_LATEST)


class _Server(Collector):
    def __init__(self, registry: Registry, counts: ResponseCounts) -> None:
        self._registry = registry
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        return [*with_aliases(families(self._registry.statuses())), self._counts.family()]

    def describe(self) -> Iterable[Metric]:
        """Nothing: the models cannot be asked before there is an event loop."""
        return ()
