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

LOAD_BY_NAME = EndpointProbes(
    endpoint("POST", "/v1/load_lora_adapter"),
    {"lora_name": "sql", "lora_path": "/m/a.gguf"},
    {
        "model": Probe("nobody", refused, is_strict=True),
        "lora_name": Probe("poet", _loads(name="poet", path="/m/a.gguf", scale=0.0)),
        "lora_path": Probe("/m/b.gguf", _loads(name="sql", path="/m/b.gguf")),
    },
)
UNLOAD_BY_NAME = EndpointProbes(
    endpoint("POST", "/v1/unload_lora_adapter"),
    {"lora_name": "sql"},
    {
        "model": Probe("nobody", refused, is_strict=True),
        "lora_name": Probe("poet", lambda exchange: exchange.runtime.adapter_changes == [(None, "poet", None)]),
    },
)

PROBES = (LOAD, LOAD_BY_NAME, UNLOAD_BY_NAME)
