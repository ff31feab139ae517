"""What the installed clients can send has its row in our tables, and what we answer has all that their types need."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from anthropic.resources.beta.messages import Batches as BetaMessageBatches
from anthropic.resources.beta.messages import Messages as BetaMessages
from anthropic.resources.messages import Batches as MessageBatches
from anthropic.resources.messages import Messages
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from ollama import ChatResponse, EmbedResponse, GenerateResponse, Options
from openai.resources.batches import Batches
from openai.resources.chat.completions import Completions as ChatCompletions
from openai.resources.completions import Completions
from openai.resources.embeddings import Embeddings
from openai.resources.responses import Responses
from openai.resources.responses.input_tokens import InputTokens
from openai.types import CreateEmbeddingResponse, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from stoker.server.dialects.ollama.types import OPTION_FIELDS
from stoker.server.endpoints import ENDPOINTS
from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app

HI = [{"role": "user", "content": "hi"}]
OWN = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
"""Parameters of the clients themselves."""

CALLS: list[tuple[str, Callable[..., Any]]] = [
    ("/v1/chat/completions", ChatCompletions.create),
    ("/v1/completions", Completions.create),
    ("/v1/embeddings", Embeddings.create),
    ("/v1/responses", Responses.create),
    ("/v1/responses/input_tokens", InputTokens.count),
    ("/v1/batches", Batches.create),
    ("/v1/messages", Messages.create),
    ("/v1/messages", BetaMessages.create),
    ("/v1/messages/count_tokens", Messages.count_tokens),
    ("/v1/messages/count_tokens", BetaMessages.count_tokens),
    ("/v1/messages/batches", MessageBatches.create),
    ("/v1/messages/batches", BetaMessageBatches.create),
]


@pytest.mark.parametrize(("path", "call"), CALLS)
def test_every_parameter_of_a_client_is_known(path: str, call: Callable[..., Any]):
    (endpoint,) = [endpoint for endpoint in ENDPOINTS if (endpoint.method, endpoint.path) == ("POST", path)]
    assert set(inspect.signature(call).parameters) - OWN <= set(endpoint.fields)


def test_every_option_of_ollamas_client_is_known():
    assert set(Options.model_fields) <= set(OPTION_FIELDS)


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/chat/completions", {"messages": HI, "logprobs": True, "top_logprobs": 1}, ChatCompletion),
        ("/v1/responses", {"input": "hi", "include": ["message.output_text.logprobs"]}, Response),
        ("/v1/embeddings", {"input": "hi", "encoding_format": "float"}, CreateEmbeddingResponse),
        ("/v1/messages", {"messages": HI, "max_tokens": 9}, Message),
        ("/v1/messages/count_tokens", {"messages": HI}, MessageTokensCount),
        ("/api/chat", {"messages": HI, "stream": False}, ChatResponse),
        ("/api/generate", {"prompt": "hi", "stream": False}, GenerateResponse),
        ("/api/embed", {"input": "hi"}, EmbedResponse),
    ],
)
def test_a_reply_has_all_that_the_clients_type_needs(path: str, body: dict[str, Any], kind: Any):
    TypeAdapter[Any](kind).validate_python(_post(path, body).json())


def test_a_model_has_all_that_the_clients_type_needs():
    (entry,) = ask(make_app(FakeRuntime()), "GET", "/v1/models").json()["data"]
    TypeAdapter[Any](Model).validate_python(entry)


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/chat/completions", {"messages": HI, "stream_options": {"include_usage": True}}, ChatCompletionChunk),
        ("/v1/responses", {"input": "hi"}, ResponseStreamEvent),
        ("/v1/messages", {"messages": HI, "max_tokens": 9}, RawMessageStreamEvent),
    ],
)
def test_every_event_has_all_that_the_clients_type_needs(path: str, body: dict[str, Any], kind: Any):
    lines = _post(path, {**body, "stream": True}).text.splitlines()
    sent = [line.removeprefix("data: ") for line in lines if line.startswith("data: {")]
    events: list[dict[str, Any]] = [msgspec.json.decode(event) for event in sent]
    assert len(events) > 2
    for event in events:
        if event.get("type") != "ping":  # Anthropic's clients pass over it
            TypeAdapter[Any](kind).validate_python(event)


def _post(path: str, body: dict[str, Any]) -> httpx.Response:
    response = ask(make_app(FakeRuntime()), "POST", path, json=body)
    assert response.status_code == 200, response.text
    return response
