"""Probes for every honoured field of the endpoints for embeddings and ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.unit.server.field_probes import ADAPTERS, LORA_VALUE, EndpointProbes, Exchange, Probe, endpoint, refused


def asked(name: str, value: Any) -> Callable[[Exchange], bool]:
    """The engine was given this part of a request for embeddings."""
    return lambda exchange: getattr(exchange.runtime.embeds[0], name) == value


def reply(exchange: Exchange) -> Any:
    return exchange.response.json()


_SHARED = {
    "model": Probe("nobody", refused, is_strict=True),
    "user": Probe("u1", asked("client_key", "u1")),
    "priority": Probe(-3, asked("priority", -3)),
    "timeout": Probe(2.5, asked("timeout_s", 2.5)),
    "truncate": Probe(True, asked("truncates", True)),
    "lora": Probe(LORA_VALUE, asked("adapters", ADAPTERS)),
}

EMBEDDINGS = EndpointProbes(
    endpoint("POST", "/v1/embeddings"),
    {"input": "hi"},
    {
        **_SHARED,
        "input": Probe(["a", [1, 2]], asked("inputs", ["a", [1, 2]])),
        "encoding_format": Probe("base64", lambda x: isinstance(reply(x)["data"][0]["embedding"], str)),
        "dimensions": Probe(2, lambda x: len(reply(x)["data"][0]["embedding"]) == 2),
    },
)

NATIVE = EndpointProbes(
    endpoint("POST", "/embedding"),
    {"content": "hi"},
    {
        **_SHARED,
        "content": Probe([5, 6], asked("inputs", [[5, 6]])),
        "input": Probe("other", refused),  # beside `content`, for which it stands
        "embd_normalize": Probe(-1, asked("norm", -1)),
    },
)

DOCUMENTS = ["a", "abc", "ab"]

RERANK = EndpointProbes(
    endpoint("POST", "/v1/rerank"),
    {"query": "q", "documents": DOCUMENTS},
    {
        **_SHARED,
        "query": Probe("probe", asked("query", "probe")),
        "documents": Probe(["a", {"text": "bcd"}], asked("inputs", ["a", "bcd"])),
        "texts": Probe(["abcd"], refused),  # beside `documents`, which it stands for
        "top_n": Probe(2, lambda x: [result["index"] for result in reply(x)["results"]] == [1, 2]),
        "return_documents": Probe(True, lambda x: reply(x)["results"][0].get("document") == {"text": "abc"}),
        "return_text": Probe(
            True, lambda x: reply(x)[0].get("text") == "abc", beside={"documents": None, "texts": DOCUMENTS}
        ),
        "raw_scores": Probe(True, lambda x: reply(x)["results"][0]["relevance_score"] == 3.0),
    },
)

_KEEP_ALIVE = {"model": _SHARED["model"], "keep_alive": Probe("soon", refused)}

OLLAMA_EMBED = EndpointProbes(
    endpoint("POST", "/api/embed"),
    {"model": "tiny", "input": "hi"},
    {
        **_KEEP_ALIVE,
        "input": Probe(["a", "b"], asked("inputs", ["a", "b"])),
        "truncate": Probe(False, asked("truncates", False)),
        "dimensions": Probe(2, lambda x: len(reply(x)["embeddings"][0]) == 2),
    },
)

OLLAMA_EMBEDDINGS = EndpointProbes(
    endpoint("POST", "/api/embeddings"),
    {"model": "tiny", "prompt": "hi"},
    {**_KEEP_ALIVE, "prompt": Probe("probe", asked("inputs", ["probe"]))},
)

PROBES = (EMBEDDINGS, NATIVE, RERANK, OLLAMA_EMBED, OLLAMA_EMBEDDINGS)
