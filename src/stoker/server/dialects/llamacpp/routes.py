"""llama-server's own endpoints and ours: who is called in which order, and nothing else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from stoker.engine.protocol import Detokenize, EraseSlots, ListSlots, Tokenize
from stoker.errors import InvalidInput, ModelNotLoaded
from stoker.runtime.base import Runtime
from stoker.runtime.registry import Registry, ServedModel
from stoker.server.answer import Asked, answer
from stoker.server.config import ServerConfig
from stoker.server.dialects.llamacpp.fields import (
    APPLY_TEMPLATE,
    CACHE,
    DETOKENIZE,
    DETOKENIZE_FIELDS,
    ERASE_CACHE,
    INFILL,
    INFILL_FIELDS,
    NATIVE_COMPLETION,
    NATIVE_COMPLETION_FIELDS,
    PROPS,
    SLOT_ACTION,
    SLOT_FILE_FIELDS,
    SLOTS,
    TOKENIZE,
    TOKENIZE_FIELDS,
)
from stoker.server.dialects.llamacpp.slots import file_slot
from stoker.server.dialects.llamacpp.types import (
    CacheEntry,
    CacheReply,
    DetokenizeReply,
    DetokenizeRequest,
    ErasedCache,
    ErasedSlot,
    InfillRequest,
    NativeCompletionRequest,
    NativeRequest,
    SlotFileRequest,
    TemplateReply,
    TokenizeReply,
    TokenizeRequest,
    TokenPiece,
)
from stoker.server.dialects.llamacpp.writer import (
    LlamaCppWriter,
    infill_request,
    native_request,
    props_reply,
    slot_reply,
)
from stoker.server.dialects.openai.fields import CHAT_PROMPT_FIELDS
from stoker.server.dialects.openai.requests import chat_prompt
from stoker.server.dialects.openai.routes import caller_of
from stoker.server.dialects.openai.types import ChatPromptRequest
from stoker.server.errors import json_response
from stoker.server.fields import decode_request
from stoker.server.generation import GenerationRequest
from stoker.server.leasing import leased, loaded
from stoker.server.routing import routes_of
from stoker.server.transport.connection import read_body, while_connected
from stoker.server.transport.sse import EventStream

_NO_SLOT_RETRY_S = 1.0

_MAX_PARTS = 1024
"""Of one text to tokenize: each is a question to the engine."""


class NativeRoutes:
    """Texts, tokens, and a look at the KV pool."""

    def __init__(self, registry: Registry, config: ServerConfig) -> None:
        self._registry = registry
        self._config = config

    def routes(self) -> list[BaseRoute]:
        return [
            *routes_of(NATIVE_COMPLETION, self.completion),
            *routes_of(INFILL, self.infill),
            *routes_of(TOKENIZE, self.tokenize),
            *routes_of(DETOKENIZE, self.detokenize),
            *routes_of(APPLY_TEMPLATE, self.apply_template),
            *routes_of(PROPS, self.props),
            *routes_of(SLOTS, self.slots),
            *routes_of(SLOT_ACTION, self.slot_action),
            *routes_of(CACHE, self.cache),
            *routes_of(ERASE_CACHE, self.erase_cache),
        ]

    async def completion(self, request: Request) -> Response | EventStream:
        body = await read_body(request, self._config)
        wire = decode_request(body, NATIVE_COMPLETION_FIELDS, NativeCompletionRequest)
        served = await leased(request, self._registry, wire.model)
        asked = native_request(wire, caller_of(request, "completion"), self._config)
        return await self._answer(request, wire, served, asked)

    async def infill(self, request: Request) -> Response | EventStream:
        body = await read_body(request, self._config)
        wire = decode_request(body, INFILL_FIELDS, InfillRequest)
        served = await leased(request, self._registry, wire.model)
        asking = infill_request(wire, served.runtime, caller_of(request, "infill"), self._config)
        asked = await while_connected(request.receive, asking)
        return await self._answer(request, wire, served, asked)

    async def tokenize(self, request: Request) -> Response:
        wire = decode_request(await read_body(request, self._config), TOKENIZE_FIELDS, TokenizeRequest)
        if wire.content is None:
            raise InvalidInput("`content` is missing", parameter="content")
        runtime = (await leased(request, self._registry, wire.model)).runtime
        parts = [wire.content] if isinstance(wire.content, str) else wire.content
        if len(parts) > _MAX_PARTS:
            raise InvalidInput(f"`content` has more than {_MAX_PARTS} parts", parameter="content")
        tokens = await while_connected(request.receive, _tokenize(runtime, parts, wire))
        return json_response(TokenizeReply(tokens if wire.with_pieces else [token.id for token in tokens]))

    async def detokenize(self, request: Request) -> Response:
        wire = decode_request(await read_body(request, self._config), DETOKENIZE_FIELDS, DetokenizeRequest)
        if wire.tokens is None:
            raise InvalidInput("`tokens` is missing", parameter="tokens")
        runtime = (await leased(request, self._registry, wire.model)).runtime
        detokenized = await while_connected(request.receive, runtime.ask(Detokenize(wire.tokens)))
        return json_response(DetokenizeReply(detokenized.text))

    async def apply_template(self, request: Request) -> Response:
        wire = decode_request(await read_body(request, self._config), CHAT_PROMPT_FIELDS, ChatPromptRequest)
        runtime = (await leased(request, self._registry, wire.model)).runtime
        # A template may compute for seconds; the streams of the others must not wait for it.
        return json_response(TemplateReply(await asyncio.to_thread(chat_prompt, wire, runtime)))

    async def props(self, request: Request) -> Response:
        return json_response(props_reply(self._asked_for(request)))

    async def slots(self, request: Request) -> Response:
        runtime = self._asked_for(request).runtime
        states = (await while_connected(request.receive, runtime.ask(ListSlots()))).slots
        num_running = sum(state.request_id is not None for state in states)
        if request.query_params.get("fail_on_no_slot") == "1" and num_running >= runtime.card.parallel:
            raise ModelNotLoaded("no slot is free", retry_after_s=_NO_SLOT_RETRY_S)
        return json_response([slot_reply(state, runtime.card) for state in states])

    async def slot_action(self, request: Request) -> Response:
        runtime, slot = self._asked_for(request).runtime, _slot(request.path_params["slot"])
        action = request.query_params.get("action", "")
        body = await read_body(request, self._config)
        match action:
            case "save" | "restore":
                wire = decode_request(body, SLOT_FILE_FIELDS, SlotFileRequest)
                return json_response(await while_connected(request.receive, file_slot(runtime, slot, action, wire)))
            case "erase":
                erased = await while_connected(request.receive, runtime.ask(EraseSlots(slot)))
                return json_response(ErasedSlot(slot, erased.num_tokens))
            case _:
                message = f"`action` must be save, restore or erase, not {action[:40]!r}"
                raise InvalidInput(message, parameter="action")

    async def cache(self, _request: Request) -> Response:
        entries = [_cache_entry(served) for served in self._registry.models]
        return json_response(CacheReply([entry for entry in entries if entry is not None]))

    async def erase_cache(self, request: Request) -> Response:
        runtime = self._asked_for(request).runtime
        erased = await while_connected(request.receive, runtime.ask(EraseSlots()))
        return json_response(ErasedCache(erased.num_tokens))

    def _asked_for(self, request: Request) -> ServedModel:
        return loaded(self._registry, request.query_params.get("model"))

    async def _answer(
        self, request: Request, wire: NativeRequest, served: ServedModel, asked: GenerationRequest
    ) -> Response | EventStream:
        return await answer(
            Asked(request, self._config, served, asked),
            lambda generation: LlamaCppWriter(wire, served, generation),
            is_stream=bool(wire.stream),
        )


def _slot(number: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", number):
        raise InvalidInput(f"{number[:40]!r} is no number of a slot", parameter="slot")
    return int(number)


async def _tokenize(runtime: Runtime, parts: Sequence[str | int], wire: TokenizeRequest) -> list[TokenPiece]:
    tokens: list[TokenPiece] = []
    for index, part in enumerate(parts):
        if isinstance(part, int):
            text = (await runtime.ask(Detokenize([part]))).text if wire.with_pieces else ""
            tokens.append(TokenPiece(part, text))
            continue
        wants_bos = bool(wire.add_special) and index == 0
        tokenized = await runtime.ask(Tokenize(part, wants_bos, parse_special=wire.parse_special is not False))
        tokens += map(_piece, tokenized.token_ids, tokenized.pieces)
    return tokens


def _piece(token_id: int, raw: bytes) -> TokenPiece:
    try:
        return TokenPiece(token_id, raw.decode())
    except UnicodeDecodeError:
        return TokenPiece(token_id, list(raw))


def _cache_entry(served: ServedModel) -> CacheEntry | None:
    beat = served.runtime.health().heartbeat
    if beat is None:
        return None
    return CacheEntry(
        id=served.model_id,
        kv_capacity=beat.kv_capacity,
        kv_used=beat.kv_used,
        kv_retained=beat.kv_retained,
        tiers=asdict(beat.tiers),
    )
