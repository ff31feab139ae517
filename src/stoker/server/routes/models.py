"""`GET /v1/models` and `/v1/models/{id}`: what is served, in OpenAI's shape."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stoker.runtime.registry import Registry, ServedModel
from stoker.server.errors import json_response
from stoker.server.wire.openai import ModelEntry, ModelList, ModelMeta


class ModelRoutes:
    """The model endpoints of the OpenAI API."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/v1/models", self.list_models),
            Route("/v1/models/{model:path}", self.get_model),  # ids may contain slashes
        ]

    async def list_models(self, _request: Request) -> Response:
        return json_response(ModelList([_entry(served) for served in self._registry.models]))

    async def get_model(self, request: Request) -> Response:
        return json_response(_entry(self._registry.find(request.path_params["model"])))


def _entry(served: ServedModel) -> ModelEntry:
    card = served.runtime.card
    meta = ModelMeta(
        n_vocab=card.vocab_size,
        n_ctx_train=card.trained_context,
        n_ctx=card.context_size,
        n_params=card.num_parameters,
        size=card.size_bytes,
    )
    return ModelEntry(
        id=served.model_id,
        created=card.created,
        aliases=list(served.names[1:]),
        max_model_len=card.context_size,
        meta=meta,
    )
