"""Counts HTTP responses by route and by class of status. Independent of models."""

from __future__ import annotations

from collections import Counter

from prometheus_client.core import CounterMetricFamily
from starlette.types import Scope

ROUTE = "route"
"""Key in a scope's state: the path pattern of the endpoint that answers. Set when the route is found."""

_NO_ROUTE = "none"
"""Label for requests that reached no endpoint: unknown paths, wrong methods, refused clients."""


class ResponseCounts:
    """Totals since the start, per endpoint and class of status, so their number is bounded whatever clients request."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def note(self, scope: Scope, status: int) -> None:
        """Counts a response that has ended with this status; 0 = no response was sent."""
        route = scope["state"].get(ROUTE)
        method = scope["method"] if route else ""
        self._counts[route or _NO_ROUTE, method, f"{status // 100}xx"] += 1

    def family(self) -> CounterMetricFamily:
        """The totals as a metric family."""
        family = CounterMetricFamily(
            "stoker_http_responses",
            "HTTP responses, by endpoint and class of status",
            labels=("route", "method", "status"),
        )
        for labels, count in self._counts.items():
            family.add_metric(labels, count)
        return family
