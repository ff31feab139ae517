"""`GET /v1/models` and `/v1/models/{id}`: what is served, in OpenAI's shape, or in Anthropic's for its clients."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from stoker.runtime.registry import Registry, ServedModel
from stoker.server.errors import json_response
from stoker.server.routing import routes_of
from stoker.server.translate import anthropic_reply
from stoker.server.translate.errors import is_anthropic
from stoker.server.wire.openai import ModelEntry, ModelList, ModelMeta
from stoker.server.wire.openai_fields import GET_MODEL, LIST_MODELS


class ModelRoutes:
    """The model endpoints, whose paths OpenAI's and Anthropic's APIs share."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def routes(self) -> list[BaseRoute]:
        return [*routes_of(LIST_MODELS, self.list_models), *routes_of(GET_MODEL, self.get_model)]

    async def list_models(self, request: Request) -> Response:
        if is_anthropic(request.scope):
            return json_response(anthropic_reply.model_list(self._registry.models))
        return json_response(ModelList([_entry(served) for served in self._registry.models]))

    async def get_model(self, request: Request) -> Response:
        served = self._registry.find(request.path_params["model"])
        return json_response(anthropic_reply.model_entry(served) if is_anthropic(request.scope) else _entry(served))


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
