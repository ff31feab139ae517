"""The autoscaling policy of engines: Ray Serve asks for the target number of replicas, waits, and scales."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

FULL = 0.8
"""Target utilization of a replica's places; the rest is a reserve for the next wave of requests."""


def wanted(open_requests: Iterable[float], places: float) -> int:
    """The number of replicas that suffices for all running and waiting requests; 1 if `places` is 0.

    Args:
        open_requests: running and waiting requests of each replica.
        places: requests that one replica runs at the same time.
    """
    return ceil(sum(open_requests) / (FULL * places)) if places else 1


def by_open_requests(context: Any) -> tuple[int, dict[str, Any]]:
    """The policy of Serve's `AutoscalingPolicy`; its state is not used.

    Args:
        context: an `AutoscalingContext` with the results of `Engine.record_autoscaling_stats`.

    Returns:
        The target number of replicas, and an empty state.
    """
    metrics: Mapping[str, Mapping[Any, float]] = context.aggregated_metrics or {}
    places = metrics.get("places", {})
    if not places:
        return context.target_num_replicas, {}
    found = wanted(metrics.get("open_requests", {}).values(), max(places.values()))
    return min(max(found, context.capacity_adjusted_min_replicas), context.capacity_adjusted_max_replicas), {}
