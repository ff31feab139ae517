"""How many responses there were, by route and by class of status. It knows no model."""

from __future__ import annotations

from collections import Counter

from prometheus_client.core import CounterMetricFamily
from starlette.types import Scope

ROUTE = "route"
"""In a scope's state: the path of the endpoint that answers, as a pattern. Set when a route was found."""

_NO_ROUTE = "none"
"""The label of requests that reached no endpoint: unknown paths, wrong methods, refused clients."""


class ResponseCounts:
    """Totals since the start. There are as many as endpoints times classes, whatever clients ask for."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def note(self, scope: Scope, status: int) -> None:
        """A response has ended with this status; 0 = there was none."""
        route = scope["state"].get(ROUTE)
        method = scope["method"] if route else ""
        self._counts[route or _NO_ROUTE, method, f"{status // 100}xx"] += 1

    def family(self) -> CounterMetricFamily:
        """For the exposition."""
        family = CounterMetricFamily(
            "stoker_http_responses",
            "HTTP responses, by endpoint and class of status",
            labels=("route", "method", "status"),
        )
        for labels, count in self._counts.items():
            family.add_metric(labels, count)
        return family
