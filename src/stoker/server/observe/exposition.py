"""`GET /metrics` for Prometheus, from the engines' heartbeats and the counts of requests. It queries no engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from stoker.server.api import Call, Router, Server
from stoker.server.observe.front_metrics import Fronts, RequestSample, add_fronts
from stoker.server.observe.metric_aliases import with_aliases
from stoker.server.observe.metrics import families
from stoker.server.observe.response_counts import ResponseCounts

router = Router(api="Stoker")


@router.endpoint("GET", "/metrics", "Metrics for Prometheus, under the names of Stoker, vLLM and llama-server.")
async def metrics(call: Call[None]) -> Response:
    others = await call.server.part(Fronts, Fronts).ask()
    return Response(generate_latest(_Exposed(call.server, others)), media_type=CONTENT_TYPE_LATEST)


@dataclass(frozen=True, slots=True)
class _Exposed(Collector):
    """Supplies the metrics of one scrape."""

    server: Server
    others: Mapping[str, Sequence[RequestSample]]

    def collect(self) -> Iterable[Metric]:
        server = self.server
        responses = server.part(ResponseCounts, ResponseCounts).family()
        own, name = families(server.registry.statuses()), server.part(Fronts, Fronts).own
        if name:
            add_fronts([*own, responses], name, self.others)
        return [*with_aliases(own), responses]
