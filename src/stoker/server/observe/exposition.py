"""`GET /metrics`: Prometheus asks, and is told what the heartbeats and the requests have said. No model is asked."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.responses import Response

from stoker.runtime.registry import Registry
from stoker.server.api import Call, Router, Server
from stoker.server.observe.metric_aliases import with_aliases
from stoker.server.observe.metrics import families
from stoker.server.observe.response_counts import ResponseCounts

router = Router(api="Stoker")


@router.endpoint(
    "GET", "/metrics", "Counts and durations for Prometheus, under our names and under those of vLLM and llama-server."
)
async def metrics(call: Call[None]) -> Response:
    exposed = call.server.part(_Exposed, lambda: _Exposed(call.server))
    return Response(generate_latest(exposed), media_type=CONTENT_TYPE_LATEST)


class _Exposed(CollectorRegistry):
    """The registry of one server, so that several in one process do not mix."""

    def __init__(self, server: Server) -> None:
        super().__init__(auto_describe=False)
        self.register(_Server(server.registry, server.part(ResponseCounts, ResponseCounts)))


class _Server(Collector):
    def __init__(self, registry: Registry, counts: ResponseCounts) -> None:
        self._registry = registry
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        return [*with_aliases(families(self._registry.statuses())), self._counts.family()]

    def describe(self) -> Iterable[Metric]:
        """Nothing: the models cannot be asked before there is an event loop."""
        return ()
