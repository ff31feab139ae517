"""The metrics endpoint; what it says is no JSON."""

from __future__ import annotations

from stoker.server.fields import Endpoint

METRICS = Endpoint(
    api="Stoker",
    method="GET",
    path="/metrics",
    summary="Counts and durations for Prometheus, under our names and under those of vLLM and llama-server.",
)
