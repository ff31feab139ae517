"""Converts Ollama's requests to `GenerationRequest`s. Uses no connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from stoker.chat.constraints import schema_grammar
from stoker.chat.planning import Conversation, Plan, Thinking, planned, recalled
from stoker.chat.thoughts import Thoughts
from stoker.chat.tools import tools_of
from stoker.core.outline import GrammarText, Outline
from stoker.core.params import NO_LIMIT
from stoker.core.request import check_token_ids
from stoker.engine.protocol import Prompt
from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.runtime.base import Runtime
from stoker.runtime.keep_alive import parse_keep_alive
from stoker.server.config import ServerConfig
from stoker.server.dialects.ollama.names import own_name
from stoker.server.dialects.ollama.types import OPTION_FIELDS, AnswerRequest, ChatRequest, GenerateRequest, Options
from stoker.server.fields import convert_fields
from stoker.server.generation import GenerationRequest
from stoker.server.request.chat import top_logprobs
from stoker.server.request.fields import GenerationFields
from stoker.server.request.infill import infill_prompt
from stoker.server.request.request import Caller, generation_request
from stoker.server.request.sampling import sampling_params, without_empty
from stoker.text.media_parts import MediaPart, media_from_base64
from stoker.text.messages import Message, message_from_dict, messages_from_dicts

_EFFORTS = ("low", "medium", "high", "max")

_WORDS = {name: f"options.{name}" for name in Options.__struct_fields__}


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered prompt, with the plan for the answer."""

    prompt: Prompt
    parse_special: bool = True
    plan: Plan | None = None


def is_load(wire: GenerateRequest | ChatRequest) -> bool:
    """Whether the request has no prompt, and so only loads (or unloads) the model."""
    return not (wire.prompt or wire.suffix) if isinstance(wire, GenerateRequest) else not wire.messages


def is_unload(wire: GenerateRequest | ChatRequest) -> bool:
    """Whether the request only unloads the model: it has no prompt, and a `keep_alive` of 0.

    Raises:
        InvalidInput: `keep_alive` is not a duration.
    """
    return is_load(wire) and keep_alive_of(wire.keep_alive) == 0


def keep_alive_of(keep_alive: str | float | None) -> float | None:
    """Time for which the model stays loaded after the request, in seconds; None = not given.

    Raises:
        InvalidInput: `keep_alive` is not a duration.
    """
    return None if keep_alive is None or keep_alive == "" else parse_keep_alive(keep_alive)


def answer_request(wire: AnswerRequest, rendered: Rendered, caller: Caller, config: ServerConfig) -> GenerationRequest:
    """The generation that a request asks for.

    Raises:
        InvalidInput: a field is invalid.
    """
    options = convert_fields(wire.options or {}, OPTION_FIELDS, Options, "options.")
    given = {name: getattr(options, name) for name in Options.__struct_fields__}
    fields = GenerationFields(
        **given,
        model=own_name(wire.model or ""),
        cache_prompt=wire.cache_prompt,
        lora=wire.lora,
        session_id=wire.session_id,
    )
    if fields.num_predict is not None and fields.num_predict <= 0:  # in Ollama only a positive number is a limit
        fields = msgspec.structs.replace(fields, num_predict=NO_LIMIT)
    fields = msgspec.structs.replace(fields, stop=without_empty(fields.stop))
    sampling = sampling_params(fields, _logprobs(wire), _WORDS)
    plan = rendered.plan or Plan(prompt="", outline=_outline(wire))
    return generation_request(
        fields, [rendered.prompt], sampling, caller, config, parse_special=rendered.parse_special, plan=plan
    )


def render_chat(wire: ChatRequest, runtime: Runtime, thoughts: Thoughts) -> Rendered:
    """The prompt of a conversation, with stored reasoning inserted.

    The model continues a last message of the assistant.

    Raises:
        InvalidInput: the messages are malformed, or the chat template refused them.
    """
    messages = messages_from_dicts([_as_openai(raw, i) for i, raw in enumerate(wire.messages or [])])
    is_begun = messages[-1].role == "assistant"
    asked = Conversation(
        messages=messages,
        tools=tools_of([_typed(tool) for tool in wire.tools or ()]),
        thinking=_thinking(wire),
        grammar=_grammar(wire),
        add_generation_prompt=not is_begun,
        continue_final_message=is_begun,
    )
    return _rendered(recalled(asked, thoughts), runtime)


def render_generate(wire: GenerateRequest, runtime: Runtime) -> Rendered:
    """The prompt of a `/api/generate` request, without the tokens of its `context`, which precede the prompt.

    Raises:
        InvalidInput: fields contradict each other, `context` has an invalid token id, or the chat template refused the
            prompt.
        UnsupportedParameter: the model cannot fill in the middle.
    """
    prompt = wire.prompt or ""
    if wire.suffix:
        return Rendered(infill_prompt(runtime.card, prompt, wire.suffix), parse_special=False)
    if wire.images and (wire.raw or wire.context):
        name = "raw" if wire.raw else "context"
        raise UnsupportedParameter(f"`images` cannot be combined with `{name}`; use /api/chat", parameter="images")
    if wire.raw:
        if wire.system or wire.context:
            name = "system" if wire.system else "context"
            raise InvalidInput(f"`raw` uses the prompt unchanged: leave out `{name}`", parameter=name)
        return Rendered(prompt)
    check_token_ids("context", tuple(wire.context or ()), runtime.card.vocab_size)
    user = message_from_dict(_with_images({"role": "user", "content": prompt}, wire.images, "images"), "prompt")
    asked = Conversation(messages=[*_system(wire), user], thinking=_thinking(wire), grammar=_grammar(wire))
    return _rendered(asked, runtime)


def _rendered(asked: Conversation, runtime: Runtime) -> Rendered:
    plan = planned(asked, runtime)
    return Rendered(plan.prompt, plan=plan)


def _system(wire: GenerateRequest) -> list[Message]:
    return [message_from_dict({"role": "system", "content": wire.system}, "system")] if wire.system else []


def _typed(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tool with a type. Clients in Go send an empty one if it is not set, and Ollama does not look at it."""
    return tool if tool.get("type") else {**tool, "type": "function"}


def _as_openai(raw: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Converts a message to OpenAI's shape.

    Ollama has `tool_name` for `name`, and images beside the text. It also takes roles in capitals, and messages without
    content.
    """
    message = {name: value for name, value in raw.items() if name not in ("images", "tool_name")}
    message = _with_images(message, raw.get("images"), f"messages[{index}].images")
    if isinstance(role := message.get("role"), str):
        message["role"] = role.lower()
    if message.get("content") is None and not message.get("tool_calls"):
        message["content"] = ""
    return message if raw.get("tool_name") is None else {**message, "name": raw["tool_name"]}


def _with_images(message: Mapping[str, Any], images: object, where: str) -> dict[str, Any]:
    """The message with its images before the text, as in Ollama."""
    if not images:
        return dict(message)
    if not isinstance(images, list):
        raise InvalidInput(f"`{where}` must be a list of base64 texts", parameter=where)
    files = cast("list[object]", images)
    parts: list[object] = [
        MediaPart(media_from_base64(file, "image", f"{where}[{index}]")) for index, file in enumerate(files)
    ]
    content = message.get("content")
    return {**message, "content": [*parts, *([] if content is None else [content])]}


def _thinking(wire: AnswerRequest) -> Thinking:
    if wire.think is None or wire.think == "":
        return Thinking()
    if isinstance(wire.think, bool):
        return Thinking(is_on=wire.think, is_preference=not wire.think)
    if wire.think not in _EFFORTS:
        message = f"`think` must be true, false, {', '.join(_EFFORTS)}, not {wire.think[:40]!r}"
        raise InvalidInput(message, parameter="think")
    return Thinking(is_on=True, effort=wire.think)


def _grammar(wire: AnswerRequest) -> GrammarText | None:
    if wire.format is None or wire.format == "":
        return None
    return GrammarText(kind="json_object") if wire.format == "json" else schema_grammar(wire.format, "format")


def _outline(wire: AnswerRequest) -> Outline | None:
    grammar = _grammar(wire)
    return None if grammar is None else Outline(grammar=grammar)


def _logprobs(wire: AnswerRequest) -> int | None:
    top = top_logprobs(wire.top_logprobs)
    return top or 0 if wire.logprobs or top else None
