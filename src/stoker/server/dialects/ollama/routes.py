"""Ollama's endpoints that generate text. The handlers only call other modules, in order."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from starlette.responses import Response

from stoker.engine.question_messages import Tokenize
from stoker.errors import InvalidInput
from stoker.runtime.registry import ServedModel
from stoker.server.access.control import check_admin
from stoker.server.answer import Asked, answer
from stoker.server.api import Call, Router
from stoker.server.config import ServerConfig
from stoker.server.dialects.ollama.names import own_name
from stoker.server.dialects.ollama.requests import (
    answer_request,
    is_load,
    is_unload,
    keep_alive_of,
    render_chat,
    render_generate,
)
from stoker.server.dialects.ollama.types import (
    CHAT_FIELDS,
    GENERATE_FIELDS,
    NDJSON_MEDIA,
    OPTION_FIELDS,
    ChatReply,
    ChatRequest,
    GenerateReply,
    GenerateRequest,
)
from stoker.server.dialects.ollama.writer import MakeReply, OllamaWriter, chat_reply, generate_reply, load_reply
from stoker.server.error_types import OllamaError
from stoker.server.errors import json_response
from stoker.server.generation import GenerationRequest
from stoker.server.models.local_models import LocalModels
from stoker.server.request.request import Caller
from stoker.server.transport.sse import EventStream

router = Router(api="Ollama", error=OllamaError)

_AnswerCall: TypeAlias = Call[GenerateRequest] | Call[ChatRequest]


@router.endpoint(
    "POST",
    "/api/generate",
    "Generates text for a prompt.",
    body=GenerateRequest,
    fields=GENERATE_FIELDS,
    nested={"options": OPTION_FIELDS},
    checks_nested=False,
    reply=GenerateReply,
    event=GenerateReply,
    stream_media=NDJSON_MEDIA,
)
async def generate(call: Call[GenerateRequest]) -> Response | EventStream:
    wire = call.body
    if is_unload(wire):
        return await _unload(call, generate_reply)
    served = await _served(call)
    if is_load(wire):
        return _loaded(call, served, generate_reply)
    rendered = await call.off_loop(render_generate, wire, served.runtime)
    prompt_ids = None
    if not wire.raw and not wire.images and isinstance(rendered.prompt, str):
        tokenized = await call.wait(served.runtime.ask(Tokenize(rendered.prompt, wants_bos=not wire.context)))
        prompt_ids = [*(wire.context or ()), *tokenized.token_ids]
        rendered = replace(rendered, prompt=prompt_ids)
    asked = answer_request(wire, rendered, call.caller("ollama"), call.config)
    return await answer(
        Asked(call.request, call.config, served, _named(asked, call)),
        lambda generation: OllamaWriter(generate_reply, _name(call, served), generation, call.begun_s, prompt_ids),
        is_stream=wire.stream is not False,
    )


@router.endpoint(
    "POST",
    "/api/chat",
    "Generates the next message of a conversation.",
    body=ChatRequest,
    fields=CHAT_FIELDS,
    nested={"options": OPTION_FIELDS},
    checks_nested=False,
    reply=ChatReply,
    event=ChatReply,
    stream_media=NDJSON_MEDIA,
)
async def chat(call: Call[ChatRequest]) -> Response | EventStream:
    if is_unload(call.body):
        return await _unload(call, chat_reply)
    served = await _served(call)
    if is_load(call.body):
        return _loaded(call, served, chat_reply)
    asked = await call.off_loop_if_long(_chat_request, call.body, served, call.caller("ollama"), call.config)
    return await answer(
        Asked(call.request, call.config, served, _named(asked, call)),
        lambda generation: OllamaWriter(
            chat_reply, _name(call, served), generation, call.begun_s, keep_thought=asked.thoughts.keep
        ),
        is_stream=call.body.stream is not False,
    )


def _chat_request(wire: ChatRequest, served: ServedModel, caller: Caller, config: ServerConfig) -> GenerationRequest:
    return answer_request(wire, render_chat(wire, served.runtime, caller.thoughts), caller, config)


async def _served(call: _AnswerCall) -> ServedModel:
    return await call.lease(_registered_name(call), keep_alive_of(call.body.keep_alive))


async def _unload(call: _AnswerCall, make: MakeReply) -> Response:
    """Begins to unload a model: its running requests may still end. Raises InvalidInput if the model is pinned."""
    check_admin(call.request.scope)
    status = call.registry.resolve(_registered_name(call))
    if status.spec.is_pinned:
        message = f"`keep_alive` of 0: the model '{status.model_id}' is pinned and stays loaded"
        raise InvalidInput(message, parameter="keep_alive")
    await call.registry.unload(status.model_id)
    return json_response(load_reply(make, call.body.model or status.model_id, "unload"))


def _named(asked: GenerationRequest, call: _AnswerCall) -> GenerationRequest:
    """The request with the registry's name of its model, because an alias may mean a model with an adapter."""
    return replace(asked, model=_registered_name(call))


def _registered_name(call: _AnswerCall) -> str:
    return LocalModels(call.registry).registered_name(own_name(call.body.model or ""))


def _loaded(call: _AnswerCall, served: ServedModel, make: MakeReply) -> Response:
    _ = served.runtime.card  # raises ModelNotLoaded until the model is loaded
    return json_response(load_reply(make, _name(call, served)))


def _name(call: _AnswerCall, served: ServedModel) -> str:
    """Name of the model in the reply: Ollama's clients expect the name that they sent."""
    return call.body.model or served.model_id
