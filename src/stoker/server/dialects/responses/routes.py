"""OpenAI's responses endpoints: who is called in which order, and what is kept."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response as HTTPResponse
from starlette.routing import BaseRoute

from stoker.engine.protocol import Tokenize
from stoker.errors import ResponseNotFound, StokerError, UnsupportedParameter
from stoker.runtime.registry import Lease, Registry, ServedModel
from stoker.server.access.control import owner_of
from stoker.server.answer import Asked, Parts, answer
from stoker.server.config import ServerConfig
from stoker.server.dialects.openai.routes import caller_of
from stoker.server.dialects.openai.types import InputTokens
from stoker.server.dialects.responses.fields import (
    CANCEL,
    COUNT,
    CREATE,
    DELETE,
    GET,
    INPUT_ITEMS,
    RESPONSE_PROMPT_FIELDS,
    RESPONSES_FIELDS,
    RESPONSES_NESTED,
)
from stoker.server.dialects.responses.input_items import input_items, page_of
from stoker.server.dialects.responses.requests import input_messages, response_prompt, response_request
from stoker.server.dialects.responses.store import ResponseStore
from stoker.server.dialects.responses.types import DeletedResponse, Response, ResponsePromptRequest, ResponsesRequest
from stoker.server.dialects.responses.writer import ResponseWriter, new_response
from stoker.server.errors import json_response
from stoker.server.fields import decode_request
from stoker.server.generation import Generation, GenerationRequest
from stoker.server.leasing import leased, shared_lease
from stoker.server.routing import routes_of
from stoker.server.transport.connection import read_body, while_connected
from stoker.server.transport.sse import EventStream
from stoker.text.messages import Message

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Who answers what."""

    served: ServedModel
    owner: str
    """To whom the response will belong."""
    messages: Sequence[Message]
    """The whole conversation, without the instructions."""


class ResponsesRoutes:
    """The endpoints that keep state: what was answered is there to be fetched and gone on from."""

    def __init__(self, registry: Registry, config: ServerConfig) -> None:
        self._registry = registry
        self._config = config
        self._store = ResponseStore(config)

    def routes(self) -> list[BaseRoute]:
        return [
            *routes_of(COUNT, self.input_tokens),
            *routes_of(CREATE, self.create),
            *routes_of(GET, self.get),
            *routes_of(DELETE, self.delete),
            *routes_of(CANCEL, self.cancel),
            *routes_of(INPUT_ITEMS, self.input_items),
        ]

    async def create(self, request: Request) -> HTTPResponse | EventStream:
        wire = decode_request(
            await read_body(request, self._config), RESPONSES_FIELDS, ResponsesRequest, RESPONSES_NESTED
        )
        asked = await self._understand(request, wire)
        runtime = asked.served.runtime
        # A template may compute for seconds; the streams of the others must not wait for it.
        generating = await asyncio.to_thread(
            response_request, wire, asked.messages, runtime, caller_of(request, "resp", "_"), self._config
        )
        response = new_response(wire, generating, asked.served.model_id, int(time.time()))
        if wire.background:
            return await self._begin(request, generating, ResponseWriter(response), asked)
        writer = ResponseWriter(response, lambda complete: self._keep(complete, asked))
        asking = Asked(request, self._config, asked.served, generating)
        return await answer(asking, lambda _: writer, is_stream=bool(wire.stream))

    async def _begin(
        self, request: Request, generating: GenerationRequest, writer: ResponseWriter, asked: _Asked
    ) -> HTTPResponse:
        """Answers in the background; the response is fetched later."""
        generation = await while_connected(request.receive, Generation.open(asked.served, generating))
        work = _collect(generation, writer, shared_lease(request))
        self._store.start(asked.owner, generating.reply_id, writer.snapshot, work, asked.messages)
        return json_response(writer.snapshot())

    async def input_tokens(self, request: Request) -> HTTPResponse:
        wire = decode_request(
            await read_body(request, self._config), RESPONSE_PROMPT_FIELDS, ResponsePromptRequest, RESPONSES_NESTED
        )
        asked = await self._understand(request, wire)
        runtime = asked.served.runtime
        prompt = await asyncio.to_thread(response_prompt, wire, asked.messages, runtime)
        tokens = await while_connected(request.receive, runtime.ask(Tokenize(prompt)))
        return json_response(InputTokens(len(tokens.token_ids)))

    async def get(self, request: Request) -> HTTPResponse:
        if request.query_params.get("stream") in ("true", "True", "1"):
            message = "`stream` is not supported here: a response that is kept is fetched as it is now"
            raise UnsupportedParameter(message, parameter="stream")
        return json_response(self._store.get(owner_of(request.scope), request.path_params["response_id"]))

    async def delete(self, request: Request) -> HTTPResponse:
        response_id = request.path_params["response_id"]
        self._store.delete(owner_of(request.scope), response_id)
        return json_response(DeletedResponse(id=response_id))

    async def cancel(self, request: Request) -> HTTPResponse:
        cancelling = self._store.cancel(owner_of(request.scope), request.path_params["response_id"])
        return json_response(await cancelling)

    async def input_items(self, request: Request) -> HTTPResponse:
        response_id = request.path_params["response_id"]
        items = input_items(response_id, self._store.input_of(owner_of(request.scope), response_id))
        return json_response(page_of(items, request.query_params))

    async def _understand(self, request: Request, wire: ResponsesRequest | ResponsePromptRequest) -> _Asked:
        owner = owner_of(request.scope)
        added = input_messages(wire, partial(self._store.message, owner))
        messages = (*self._earlier(owner, wire.previous_response_id), *added)
        return _Asked(await leased(request, self._registry, wire.model), owner, messages)

    def _earlier(self, owner: str, response_id: str | None) -> tuple[Message, ...]:
        if not response_id:
            return ()
        try:
            return self._store.conversation(owner, response_id)
        except ResponseNotFound as error:
            raise ResponseNotFound(error.message, response_id=response_id, parameter="previous_response_id") from error

    def _keep(self, response: Response, asked: _Asked) -> None:
        if response.store:
            self._store.put(asked.owner, response, asked.messages)


async def _collect(generation: Generation, writer: ResponseWriter, lease: Lease) -> Response:
    """Runs to the end, whatever that is."""
    writer.begin()
    with closing(lease):
        return await _written(generation, writer)


async def _written(generation: Generation, writer: ResponseWriter) -> Response:
    parts = Parts(generation.reader)
    async with generation:
        try:
            async for index, output in generation:
                writer.push(parts.delta(index, output))
        except StokerError as error:
            _log.warning("a response in the background ended with %s", error.code)
            writer.fail(error)
    return writer.snapshot()
