"""Probes for every honoured field of `/lora-adapters`."""

from __future__ import annotations

from typing import Any

from stoker.engine.config import AdapterSpec
from tests.unit.server.field_probes import EndpointProbes, Exchange, Probe, endpoint, refused


def _loads(**fields: Any) -> Any:
    def effect(exchange: Exchange) -> bool:
        spec, _, _ = exchange.runtime.adapter_changes[0]
        assert isinstance(spec, AdapterSpec)
        return all(getattr(spec, name) == value for name, value in fields.items())

    return effect


LOAD = EndpointProbes(
    endpoint("POST", "/lora-adapters"),
    {"path": "/m/a.gguf"},
    {
        "model": Probe("nobody", refused, is_strict=True),
        "name": Probe("sql", _loads(name="sql", path="/m/a.gguf")),
        "path": Probe("/m/b.gguf", _loads(name="b", path="/m/b.gguf")),
        "scale": Probe(0.5, _loads(scale=0.5)),
    },
)

PROBES = (LOAD,)
