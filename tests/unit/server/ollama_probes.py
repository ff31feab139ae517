"""Probes for every honoured field of Ollama's endpoints."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import msgspec

from stoker.models.aliases import add_alias, read_aliases
from stoker.models.presets import read_presets
from stoker.models.progress import Progress
from stoker.runtime.registry import ModelSpec, Registry, ServedModel
from stoker.server.config import ServerConfig
from stoker.server.models.pulls import Pulls
from stoker.server.transport.app import create_app
from tests.unit.server.fake_runtime import FakeRuntime, ask
from tests.unit.server.field_probes import (
    GENERATION_PROBES,
    LORA,
    TOOLS,
    EndpointProbes,
    Exchange,
    Probe,
    constrained,
    endpoint,
    offered,
    refused,
    rendered,
    sampled,
)

HI = [{"role": "user", "content": "hi"}]

_ANSWER = {
    "model": Probe("nobody", refused, is_strict=True),
    "stream": Probe(False, lambda x: x.response.headers["content-type"] == "application/json"),
    "options": Probe({"top_k": 3}, sampled("top_k", 3)),
    "keep_alive": Probe("soon", refused),
    "think": Probe(False, rendered("enable_thinking", False)),
    "format": Probe("json", constrained("json_object")),
    "cache_prompt": GENERATION_PROBES["cache_prompt"],
    "session_id": GENERATION_PROBES["session_id"],
    "lora": LORA,
    "logprobs": Probe(True, sampled("logprobs", 0)),
    "top_logprobs": Probe(2, sampled("logprobs", 2)),
}

GENERATE = EndpointProbes(
    endpoint("POST", "/api/generate"),
    {"model": "tiny", "prompt": "hi"},
    {
        **_ANSWER,
        "prompt": Probe("probe", lambda x: x.runtime.rendered[0][0][-1].text == "probe"),
        "suffix": Probe("end", lambda x: "end" in x.submit.prompt),
        "system": Probe("Be brief.", lambda x: x.runtime.rendered[0][0][0].text == "Be brief."),
        "context": Probe([7], lambda x: x.submit.prompt[0] == 7),
        "images": Probe(["aGk="], refused),
        "raw": Probe(True, lambda x: x.submit.prompt == "hi"),
    },
)

CHAT = EndpointProbes(
    endpoint("POST", "/api/chat"),
    {"model": "tiny", "messages": HI},
    {
        **_ANSWER,
        "tools": Probe(TOOLS, offered),
        "messages": Probe(
            [{"role": "user", "content": "probe"}], lambda x: x.runtime.rendered[0][0][-1].text == "probe"
        ),
    },
)


class FileProbes(EndpointProbes):
    """On a cache of its own, with the alias `mine` in it. Pulls end at once, and presets are found."""

    def send(self, fields: Mapping[str, Any] = MappingProxyType({}), probe: Probe | None = None) -> Exchange:
        runtime = FakeRuntime()
        registry = Registry(discover=lambda: [_spec(name, runtime) for name in read_presets()])
        registry.adopt(ServedModel(("tiny",), runtime))
        app = create_app(registry, ServerConfig(), parts=[Pulls(_bring)])
        beside = {} if probe is None else probe.beside
        with tempfile.TemporaryDirectory() as cache, patch.dict(os.environ, {"STOKER_CACHE_DIR": cache}):
            add_alias("mine", "tiny")
            body = {**self.body, **beside, **fields}
            response = ask(app, self.endpoint.method, self.endpoint.path, json=body)
            response.headers["x-aliases"] = ",".join(read_aliases())
            response.headers["x-presets"] = msgspec.json.encode(read_presets()).decode()
        return Exchange(response, runtime)


def _spec(name: str, runtime: FakeRuntime) -> ModelSpec:
    return ModelSpec(names=(name,), make=lambda _: runtime)


def _bring(model: str, *, progress: Progress) -> object:
    progress.start(1, model)
    return Path(model)


def created(name: str, field: str, value: object) -> Any:
    return lambda exchange: json.loads(exchange.response.headers["x-presets"])[name].get(field) == value


def aliases(*names: str) -> Any:
    return lambda exchange: exchange.response.headers["x-aliases"] == ",".join(names)


NAME = {"model": Probe("nobody", refused), "name": Probe("nobody", refused)}

SHOW = FileProbes(endpoint("POST", "/api/show"), {"name": "tiny"}, {**NAME, "verbose": Probe("yes", refused)})
DELETE = FileProbes(endpoint("DELETE", "/api/delete"), {"name": "mine"}, NAME)
PULL = FileProbes(endpoint("POST", "/api/pull"), {"name": "smollm2"}, {**NAME, "stream": _ANSWER["stream"]})
COPY = FileProbes(
    endpoint("POST", "/api/copy"),
    {"source": "tiny", "destination": "other"},
    {"source": Probe("nobody", refused), "destination": Probe("third", aliases("mine", "third"))},
)
_TOP_3_OR_STOP = {"top_k": 3, "stop": ["a", "b"]}
CREATE = FileProbes(
    endpoint("POST", "/api/create"),
    {"name": "new", "from": "tiny"},
    {
        "model": Probe("a b", refused),
        "name": Probe("a b", refused),
        "from": Probe("nobody", refused),
        "system": Probe("Be brief.", created("new", "system", "Be brief.")),
        "parameters": Probe(_TOP_3_OR_STOP, created("new", "sampling", _TOP_3_OR_STOP)),
        "stream": _ANSWER["stream"],
    },
)

PROBES = (GENERATE, CHAT, SHOW, DELETE, PULL, COPY, CREATE)
