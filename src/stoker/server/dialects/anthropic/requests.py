"""An Anthropic request becomes a conversation and a `GenerationRequest`. Nothing here touches a connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.runtime.base import Runtime
from stoker.server.config import ServerConfig
from stoker.server.dialects.anthropic.types import CountTokensRequest, MessagesRequest
from stoker.server.generation import GenerationRequest
from stoker.server.request.fields import GenerationFields
from stoker.server.request.request import Caller, generation_request
from stoker.server.request.sampling import sampling_params
from stoker.text.messages import Message, message_from_dict

_WORDS = {"stop": "stop_sequences"}

_VOLATILE = "x-anthropic-billing-header:"
"""Claude Code begins its system prompt with such a line, new in every request: no prefix would ever be found again."""


def message_request(wire: MessagesRequest, runtime: Runtime, caller: Caller, config: ServerConfig) -> GenerationRequest:
    """What a messages request asks of a model.

    Raises:
        InvalidInput: something cannot be done as asked, or the chat template refused the messages.
    """
    if wire.max_tokens is None:
        raise InvalidInput("`max_tokens` is missing", parameter="max_tokens")
    fields = GenerationFields(
        max_tokens=wire.max_tokens,
        stop=wire.stop_sequences,
        temperature=wire.temperature,
        top_k=wire.top_k,
        top_p=wire.top_p,
        user=wire.metadata.user_id if wire.metadata else None,
        model=wire.model,
        cache_prompt=wire.cache_prompt,
        lora=wire.lora,
    )
    return generation_request(fields, [render(wire, runtime)], sampling_params(fields, words=_WORDS), caller, config)


def render(wire: CountTokensRequest, runtime: Runtime) -> str:
    """The prompt's text. A last message of the assistant is the beginning of the answer.

    Raises:
        InvalidInput: the messages are not valid, or the chat template refused them.
    """
    messages = conversation(wire)
    is_begun = messages[-1].role == "assistant"
    effort = wire.output_config.effort if wire.output_config is not None else None
    return runtime.render_chat(
        messages,
        add_generation_prompt=not is_begun,
        continue_final_message=is_begun,
        template_kwargs={} if effort is None else {"reasoning_effort": effort},
    )


def conversation(wire: CountTokensRequest) -> list[Message]:
    """The system prompt and the messages, in the shape that all chat templates know.

    Raises:
        InvalidInput: `fields["parameter"]` is the path of the culprit.
        UnsupportedParameter: a block that is no text, such as an image.
    """
    if not wire.messages:
        raise InvalidInput("`messages` must be a list with at least one message", parameter="messages")
    messages = _system(wire.system)
    for index, raw in enumerate(wire.messages):
        messages += _messages(raw, f"messages[{index}]")
    return messages


def _system(system: str | list[dict[str, Any]] | None) -> list[Message]:
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system or []
    kept = [block for block in blocks if not str(block.get("text", "")).startswith(_VOLATILE)]
    return [message_from_dict({"role": "system", "content": kept}, "system")] if kept else []


@dataclass(slots=True)
class _Turn:
    """One message, sorted into what the parts of it are here."""

    texts: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    thoughts: list[str] = field(default_factory=list[str])
    calls: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    results: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])


def _messages(raw: dict[str, Any], where: str) -> list[Message]:
    """Results of tools stand inside a user's message, but are messages of their own to a template."""
    content = raw.get("content")
    if not isinstance(content, list):
        return [message_from_dict({"role": raw.get("role"), "content": content}, where)]
    turn = _Turn()
    for index, block in enumerate(cast("list[object]", content)):
        _sort(turn, block, f"{where}.content[{index}]")
    own: dict[str, Any] = {"role": raw.get("role"), "content": turn.texts or None}
    if turn.thoughts:
        own["reasoning_content"] = "\n".join(turn.thoughts)
    if turn.calls:
        own["tool_calls"] = turn.calls
    has_own = turn.texts or turn.thoughts or turn.calls or not turn.results
    return [message_from_dict(message, where) for message in (*turn.results, *([own] if has_own else []))]


def _sort(turn: _Turn, block: object, where: str) -> None:
    fields = cast("dict[str, Any]", block if isinstance(block, dict) else {})
    if fields.get("type") is None:
        raise InvalidInput(f"`{where}` must be an object with a `type`", parameter=where)
    match fields:
        case {"type": "text"}:
            turn.texts.append(fields)
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            turn.texts.append({"type": "text", "text": _titled(fields, text)})
        case {"type": "thinking", "thinking": str(thought)}:
            turn.thoughts.append(thought)
        case {"type": "tool_use", "id": str(call_id), "name": str(name)}:
            function: dict[str, Any] = {"name": name, "arguments": fields.get("input")}
            turn.calls.append({"id": call_id, "type": "function", "function": function})
        case {"type": "tool_result", "tool_use_id": str(call_id)}:
            turn.results.append({"role": "tool", "tool_call_id": call_id, "content": fields.get("content")})
        case {"type": "redacted_thinking"}:
            pass  # encrypted by another model: nobody here could read it
        case {"type": "thinking" | "tool_use" | "tool_result" as kind}:
            raise InvalidInput(f"`{where}` is no valid block of type {kind!r}", parameter=where)
        case _:
            message = f"`{where}`: blocks of type {fields['type']!r} are not supported, only text"
            raise UnsupportedParameter(message, parameter=where)


def _titled(document: Mapping[str, Any], text: str) -> str:
    """A document of plain text, with what the client says about it in front."""
    about = [document.get("title"), document.get("context")]
    return "\n".join([*(line for line in about if isinstance(line, str)), text])
