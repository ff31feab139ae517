"""The tables that say what becomes of every known field of the native endpoints; they do nothing themselves."""

from __future__ import annotations

from stoker.server.dialects.llamacpp.types import (
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
    SavedSlot,
    SlotFileRequest,
    SlotReply,
    TemplateReply,
    TokenizeReply,
    TokenizeRequest,
)
from stoker.server.dialects.openai.fields import CHAT_PROMPT_FIELDS, SHARED
from stoker.server.dialects.openai.types import ChatPromptRequest
from stoker.server.fields import Endpoint, FieldTable, Ignored, Refused, honoured

_API = "native"

_OWN: FieldTable = {
    "stream_options": Ignored("the last part of every answer has the numbers"),
    "multimodal_data": Refused("images and audio are not available yet", ([],)),
}

NATIVE_COMPLETION_FIELDS: FieldTable = honoured(NativeCompletionRequest, SHARED, _OWN)
INFILL_FIELDS: FieldTable = honoured(InfillRequest, SHARED, _OWN)
TOKENIZE_FIELDS: FieldTable = honoured(TokenizeRequest)
DETOKENIZE_FIELDS: FieldTable = honoured(DetokenizeRequest)
SLOT_FILE_FIELDS: FieldTable = honoured(SlotFileRequest)

NATIVE_COMPLETION = Endpoint(
    api=_API,
    method="POST",
    path="/completion",
    summary="Continues a text, in llama-server's own words.",
    request=NativeCompletionRequest,
    fields=NATIVE_COMPLETION_FIELDS,
    reply=NativeReply | list[NativeReply],
    event=(NativeChunk, NativeReply),
)
INFILL = Endpoint(
    api=_API,
    method="POST",
    path="/infill",
    summary="Writes what belongs between two texts, if the model can.",
    request=InfillRequest,
    fields=INFILL_FIELDS,
    reply=NativeReply | list[NativeReply],
    event=(NativeChunk, NativeReply),
)
TOKENIZE = Endpoint(
    api=_API,
    method="POST",
    path="/tokenize",
    summary="The tokens of a text.",
    request=TokenizeRequest,
    fields=TOKENIZE_FIELDS,
    reply=TokenizeReply,
)
DETOKENIZE = Endpoint(
    api=_API,
    method="POST",
    path="/detokenize",
    summary="The text of some tokens.",
    request=DetokenizeRequest,
    fields=DETOKENIZE_FIELDS,
    reply=DetokenizeReply,
)
APPLY_TEMPLATE = Endpoint(
    api=_API,
    method="POST",
    path="/apply-template",
    summary="The prompt that the chat template makes of a conversation.",
    request=ChatPromptRequest,
    fields=CHAT_PROMPT_FIELDS,
    reply=TemplateReply,
)
PROPS = Endpoint(
    api=_API,
    method="GET",
    path="/props",
    summary="What the served model is, and how it is served.",
    query={"model": str},
    reply=PropsReply,
)
SLOTS = Endpoint(
    api=_API,
    method="GET",
    path="/slots",
    summary="What every slot of the KV pool holds. With `fail_on_no_slot=1`: 503 if no request could begin at once.",
    query={"model": str, "fail_on_no_slot": int},
    reply=list[SlotReply],
)
SLOT_ACTION = Endpoint(
    api=_API,
    method="POST",
    path="/slots/{slot}",
    summary="With `action`: save, restore or erase what a finished conversation left in a slot.",
    request=SlotFileRequest,
    has_optional_body=True,
    fields=SLOT_FILE_FIELDS,
    query={"model": str, "action": str},
    reply=(SavedSlot, RestoredSlot, ErasedSlot),
    is_admin=True,
)
CACHE = Endpoint(
    api=_API,
    method="GET",
    path="/cache",
    summary="What the prefix cache of every model holds.",
    reply=CacheReply,
)
ERASE_CACHE = Endpoint(
    api=_API,
    method="DELETE",
    path="/cache",
    summary="Erases what finished conversations left in the KV pool and in memory behind it; on disk it stays.",
    query={"model": str},
    reply=ErasedCache,
    is_admin=True,
)

ENDPOINTS = (
    NATIVE_COMPLETION,
    INFILL,
    TOKENIZE,
    DETOKENIZE,
    APPLY_TEMPLATE,
    PROPS,
    SLOTS,
    SLOT_ACTION,
    CACHE,
    ERASE_CACHE,
)
