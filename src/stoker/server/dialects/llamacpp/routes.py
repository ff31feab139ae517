"""llama-server's endpoints that OpenAI's API lacks, and Stoker's own. Handlers only call other modules, in order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from starlette.responses import Response

from stoker.engine.question_messages import Detokenize, EraseSlots, ListSlots, RestoreSlot, SaveSlot, Tokenize
from stoker.errors import InvalidInput, ModelNotLoaded
from stoker.runtime.base import Runtime
from stoker.runtime.registry import ServedModel
from stoker.server.answer import Asked, answer
from stoker.server.api import Call, Router
from stoker.server.dialects.llamacpp.types import (
    DETOKENIZE_FIELDS,
    INFILL_FIELDS,
    NATIVE_COMPLETION_FIELDS,
    SLOT_FILE_FIELDS,
    TOKENIZE_FIELDS,
    CacheEntry,
    CacheReply,
    DetokenizeReply,
    DetokenizeRequest,
    ErasedCache,
    ErasedSlot,
    InfillRequest,
    NativeChunk,
    NativeCompletionRequest,
    NativeReply,
    PropsReply,
    RestoredSlot,
    RestoreTimings,
    SavedSlot,
    SaveTimings,
    SlotFileRequest,
    SlotReply,
    TemplateReply,
    TokenizeReply,
    TokenizeRequest,
    TokenizerReply,
    TokenPiece,
)
from stoker.server.dialects.llamacpp.writer import (
    LlamaCppWriter,
    infill_request,
    native_request,
    props_reply,
    slot_reply,
)
from stoker.server.errors import json_response
from stoker.server.fields import decode_request
from stoker.server.generation import GenerationRequest
from stoker.server.remote_files.messages import resolve_files
from stoker.server.request.chat import CHAT_PROMPT_FIELDS, ChatPromptRequest, chat_prompt
from stoker.server.transport.sse import EventStream

_NO_SLOT_RETRY_S = 1.0

_MAX_PARTS = 1024
"""Maximum number of parts of one text to tokenize, because each part is a separate question to the engine."""

router = Router(api="native")


@router.endpoint(
    "POST",
    "/completion",
    "Generates text for a prompt, with the fields of llama-server.",
    body=NativeCompletionRequest,
    fields=NATIVE_COMPLETION_FIELDS,
    reply=NativeReply | list[NativeReply],
    event=(NativeChunk, NativeReply),
)
async def completion(call: Call[NativeCompletionRequest]) -> Response | EventStream:
    served = await call.lease(call.body.model)
    asked = native_request(call.body, call.caller("completion"), call.config)
    return await _answer(call, served, asked)


@router.endpoint(
    "POST",
    "/infill",
    "Fills in the middle between two texts, if the model can.",
    body=InfillRequest,
    fields=INFILL_FIELDS,
    reply=NativeReply | list[NativeReply],
    event=(NativeChunk, NativeReply),
)
async def infill(call: Call[InfillRequest]) -> Response | EventStream:
    served = await call.lease(call.body.model)
    asked = await call.wait(infill_request(call.body, served.runtime, call.caller("infill"), call.config))
    return await _answer(call, served, asked)


@router.endpoint(
    "POST",
    "/tokenize",
    "Tokenizes a text.",
    body=TokenizeRequest,
    fields=TOKENIZE_FIELDS,
    reply=TokenizeReply,
)
async def tokenize(call: Call[TokenizeRequest]) -> Response:
    wire = call.body
    runtime = (await call.lease(wire.model)).runtime
    if wire.content is not None and wire.prompt is not None:
        raise InvalidInput("send the text as `content` or as `prompt`, not as both", parameter="prompt")
    content = wire.content if wire.prompt is None else wire.prompt
    parts = [content] if isinstance(content, str) else content or []
    if len(parts) > _MAX_PARTS:
        raise InvalidInput(f"`content` has more than {_MAX_PARTS} parts", parameter="content")
    tokens = await call.wait(_tokenize(runtime, parts, wire))
    shown = tokens if wire.with_pieces else [token.id for token in tokens]
    return json_response(TokenizeReply(shown, len(tokens), runtime.card.context_size))


@router.endpoint(
    "POST",
    "/detokenize",
    "Detokenizes tokens.",
    body=DetokenizeRequest,
    fields=DETOKENIZE_FIELDS,
    reply=DetokenizeReply,
)
async def detokenize(call: Call[DetokenizeRequest]) -> Response:
    if call.body.tokens is None:
        raise InvalidInput("`tokens` is missing", parameter="tokens")
    runtime = (await call.lease(call.body.model)).runtime
    detokenized = await call.wait(runtime.ask(Detokenize(call.body.tokens)))
    return json_response(DetokenizeReply(detokenized.text, detokenized.text))


@router.endpoint(
    "GET",
    "/tokenizer_info",
    "Shows the special tokens and the chat template of the model, like vLLM.",
    query={"model": str},
    reply=TokenizerReply,
)
async def tokenizer_info(call: Call[None]) -> Response:
    card = _asked_for(call).runtime.card
    return json_response(
        TokenizerReply(
            bos_token=card.bos_token or None, eos_token=card.eos_token or None, chat_template=card.chat_template
        )
    )


@router.endpoint(
    "POST",
    "/apply-template",
    "Applies the chat template to a conversation.",
    body=ChatPromptRequest,
    fields=CHAT_PROMPT_FIELDS,
    reply=TemplateReply,
)
async def apply_template(call: Call[ChatPromptRequest]) -> Response:
    runtime = (await call.lease(call.body.model)).runtime
    await resolve_files(call, runtime.card.media, call.body.messages, "messages", runtime.card.media_refusal)
    return json_response(TemplateReply(await call.off_loop(chat_prompt, call.body, runtime, call.thoughts)))


@router.endpoint(
    "GET",
    "/props",
    "Shows the served model and its settings.",
    query={"model": str},
    reply=PropsReply,
)
async def props(call: Call[None]) -> Response:
    return json_response(await call.off_loop(props_reply, _asked_for(call)))


@router.endpoint(
    "GET",
    "/slots",
    "Shows the slots of the KV pool. With `fail_on_no_slot=1`: 503 if no request could begin at once.",
    query={"model": str, "fail_on_no_slot": int},
    reply=list[SlotReply],
)
async def slots(call: Call[None]) -> Response:
    runtime = _asked_for(call).runtime
    states = (await call.wait(runtime.ask(ListSlots()))).slots
    num_running = sum(state.request_id is not None for state in states)
    if call.query.get("fail_on_no_slot") == "1" and num_running >= runtime.card.parallel:
        raise ModelNotLoaded("no slot is free", retry_after_s=_NO_SLOT_RETRY_S)
    return json_response([slot_reply(state, runtime.card) for state in states])


@router.endpoint(
    "POST",
    "/slots/{slot}",
    "Saves, restores or erases the KV cache in a slot, by `action`.",
    raw_body=SlotFileRequest,
    has_optional_body=True,
    fields=SLOT_FILE_FIELDS,
    query={"model": str, "action": str},
    reply=(SavedSlot, RestoredSlot, ErasedSlot),
    is_admin=True,
)
async def slot_action(call: Call[bytes]) -> Response:
    runtime, slot = _asked_for(call).runtime, _slot(call.path_parameter("slot"))
    action = call.query.get("action", "")
    match action:
        case "save" | "restore":
            wire = decode_request(call.body, SLOT_FILE_FIELDS, SlotFileRequest)
            return json_response(await call.wait(file_slot(runtime, slot, action, wire)))
        case "erase":
            erased = await call.wait(runtime.ask(EraseSlots(slot)))
            return json_response(ErasedSlot(slot, erased.num_tokens))
        case _:
            message = f"`action` must be save, restore or erase, not {action[:40]!r}"
            raise InvalidInput(message, parameter="action")


@router.endpoint("GET", "/cache", "Shows the contents of the prefix cache of every model.", reply=CacheReply)
async def cache(call: Call[None]) -> Response:
    entries = [_cache_entry(served) for served in call.registry.models]
    return json_response(CacheReply([entry for entry in entries if entry is not None]))


@router.endpoint(
    "DELETE",
    "/cache",
    "Erases what finished conversations left in the KV pool and in memory behind it; on disk it stays.",
    query={"model": str},
    reply=ErasedCache,
    is_admin=True,
)
async def erase_cache(call: Call[None]) -> Response:
    erased = await call.wait(_asked_for(call).runtime.ask(EraseSlots()))
    return json_response(ErasedCache(erased.num_tokens))


def _asked_for(call: Call[Any]) -> ServedModel:
    return call.loaded(call.query.get("model"))


async def _answer(
    call: Call[NativeCompletionRequest] | Call[InfillRequest], served: ServedModel, asked: GenerationRequest
) -> Response | EventStream:
    return await answer(
        Asked(call.request, call.config, served, asked),
        lambda generation: LlamaCppWriter(call.body, served, generation),
        is_stream=bool(call.body.stream),
    )


def _slot(number: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", number):
        raise InvalidInput(f"{number[:40]!r} is not the number of a slot", parameter="slot")
    return int(number)


async def _tokenize(runtime: Runtime, parts: Sequence[str | int], wire: TokenizeRequest) -> list[TokenPiece]:
    tokens: list[TokenPiece] = []
    asked = wire.add_special if wire.add_special is not None else wire.add_special_tokens
    adds_bos = wire.prompt is not None if asked is None else asked
    for index, part in enumerate(parts):
        if isinstance(part, int):
            text = (await runtime.ask(Detokenize([part]))).text if wire.with_pieces else ""
            tokens.append(TokenPiece(part, text))
            continue
        tokenized = await runtime.ask(
            Tokenize(part, adds_bos and index == 0, parse_special=wire.parse_special is not False)
        )
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


async def file_slot(
    runtime: Runtime, slot: int, action: Literal["save", "restore"], wire: SlotFileRequest
) -> SavedSlot | RestoredSlot:
    """Saves the KV cache of a slot to a file, or restores it from there, and returns the reply.

    Raises:
        InvalidInput: the name of the file is missing or invalid.
        UnsupportedParameter: the server was started without a folder for such files.
        StokerError: see `Runtime.ask`.
    """
    if wire.filename is None:
        raise InvalidInput("`filename` is missing", parameter="filename")
    if action == "save":
        filed = await runtime.ask(SaveSlot(slot, wire.filename))
        return SavedSlot(
            id_slot=slot,
            filename=wire.filename,
            n_saved=filed.num_tokens,
            n_written=filed.num_bytes,
            timings=SaveTimings(1e3 * filed.seconds),
        )
    filed = await runtime.ask(RestoreSlot(slot, wire.filename))
    return RestoredSlot(
        id_slot=slot,
        filename=wire.filename,
        n_restored=filed.num_tokens,
        n_read=filed.num_bytes,
        timings=RestoreTimings(1e3 * filed.seconds),
    )
