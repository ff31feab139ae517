"""Probes for every honoured field of Ollama's endpoints."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from stoker.models.aliases import add_alias, read_aliases
from stoker.models.progress import Progress
from stoker.runtime.registry import ServedModel
from stoker.server.config import ServerConfig
from stoker.server.dialects.ollama.pulls import Pulls
from stoker.server.transport.app import create_app
from tests.unit.server.fake_runtime import FakeRuntime, ask, registry_of
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
    """On a cache of its own, with the alias `mine` in it; what is pulled comes at once."""

    def send(self, fields: Mapping[str, Any] = MappingProxyType({}), probe: Probe | None = None) -> Exchange:
        runtime = FakeRuntime()
        app = create_app(registry_of(ServedModel(("tiny",), runtime)), ServerConfig(), parts=[Pulls(_bring)])
        beside = {} if probe is None else probe.beside
        with tempfile.TemporaryDirectory() as cache, patch.dict(os.environ, {"STOKER_CACHE_DIR": cache}):
            add_alias("mine", "tiny")
            body = {**self.body, **beside, **fields}
            response = ask(app, self.endpoint.method, self.endpoint.path, json=body)
            response.headers["x-aliases"] = ",".join(read_aliases())
        return Exchange(response, runtime)


def _bring(model: str, *, progress: Progress) -> object:
    progress.start(1, model)
    return Path(model)


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

PROBES = (GENERATE, CHAT, SHOW, DELETE, PULL, COPY)
