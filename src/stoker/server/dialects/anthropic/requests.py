"""Converts requests of Anthropic's API to conversations and `GenerationRequest`s. Uses no connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from stoker.chat.constraints import response_grammar
from stoker.chat.planning import Conversation, Thinking, planned, prompt_question, recalled
from stoker.chat.thoughts import Thoughts
from stoker.chat.tools import Tools, tools_of
from stoker.core.outline import GrammarText
from stoker.engine.question_messages import CountTokens
from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.runtime.base import Runtime
from stoker.server.config import ServerConfig
from stoker.server.dialects.anthropic.client_tools import CLIENT_TOOLS, is_of_hosted_tool, not_available, own_tools
from stoker.server.dialects.anthropic.late_tools import LateTools
from stoker.server.dialects.anthropic.types import CountTokensRequest, MessagesRequest
from stoker.server.fields import note_ignored
from stoker.server.generation import GenerationRequest
from stoker.server.request.fields import GenerationFields
from stoker.server.request.request import Caller, generation_request
from stoker.server.request.sampling import sampling_params
from stoker.text.messages import Message, PartGroup, message_from_dict

_WORDS = {"stop": "stop_sequences"}

_FAILURE = "Error:"

_VOLATILE = "x-anthropic-billing-header:"
"""Beginning of a text block that Claude Code puts first in its system prompt. The block differs in every request and
would defeat the prefix cache, so it is removed."""


def message_request(wire: MessagesRequest, runtime: Runtime, caller: Caller, config: ServerConfig) -> GenerationRequest:
    """The generation that a messages request asks for.

    Raises:
        InvalidInput: a field is invalid, or the chat template refused the messages.
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
        session_id=wire.session_id,
    )
    conversed = recalled(asked(wire, config), caller.thoughts)
    plan = planned(replace(conversed, grammar=_grammar(wire)), runtime)
    return generation_request(fields, [plan.prompt], sampling_params(fields, words=_WORDS), caller, config, plan=plan)


def counting(wire: CountTokensRequest, runtime: Runtime, thoughts: Thoughts, config: ServerConfig) -> CountTokens:
    """The question to the engine how many tokens the prompt has, with stored reasoning inserted.

    Raises:
        InvalidInput: the messages are invalid, or the chat template refused them.
    """
    return prompt_question(recalled(asked(wire, config), thoughts), runtime)


def asked(wire: CountTokensRequest, config: ServerConfig) -> Conversation:
    """The conversation of a request, which decides its prompt. The model continues a last message of the assistant.

    Raises:
        InvalidInput: the messages, the tools or the reasoning are malformed.
    """
    late = LateTools(own_tools(wire.tools or ()))
    messages = conversation(wire, late)
    is_begun = messages[-1].role == "assistant"
    return Conversation(
        messages=messages,
        tools=late.applied(_tools(wire, late)),
        thinking=_thinking(wire, is_on_unless_said=None if config.anthropic_thinking == "template" else False),
        add_generation_prompt=not is_begun,
        continue_final_message=is_begun,
    )


def _tools(wire: CountTokensRequest, late: LateTools) -> Tools:
    choice = wire.tool_choice or {}
    definitions = [_definition(tool, where) for where, tool in late.available]
    return tools_of(definitions, wire.tool_choice, parallel=choice.get("disable_parallel_tool_use") is not True)


def _definition(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type")
    description, schema = tool.get("description") or "", tool.get("input_schema")
    if isinstance(kind, str) and kind in CLIENT_TOOLS:
        description, schema = CLIENT_TOOLS[kind]
    elif kind not in ("custom", None):
        raise not_available(tool, where)
    strict = {"strict": True} if tool.get("strict") is True else {}
    function = {"name": tool.get("name"), "description": description, "parameters": schema, **strict}
    return {"type": "function", "function": function}


def _thinking(wire: CountTokensRequest, *, is_on_unless_said: bool | None) -> Thinking:
    config = wire.thinking
    effort = wire.output_config.effort if wire.output_config is not None else None
    if config is None:
        return Thinking(is_on=is_on_unless_said, effort=effort, is_preference=True)
    if config.type not in ("enabled", "disabled", "adaptive", "between_tools"):
        message = f"`thinking.type` must be enabled, disabled or adaptive, not {config.type[:40]!r}"
        raise InvalidInput(message, parameter="thinking.type")
    if config.budget_tokens is not None and config.budget_tokens < 0:
        raise InvalidInput("`thinking.budget_tokens` must be at least 0", parameter="thinking.budget_tokens")
    is_on = {"enabled": True, "disabled": False}.get(config.type)
    return Thinking(is_on=is_on, effort=effort, budget=config.budget_tokens, is_preference=True)


def _grammar(wire: MessagesRequest) -> GrammarText | None:
    given = wire.output_config.format if wire.output_config is not None else None
    if given is not None:
        return response_grammar(given, "output_config.format")
    return None if wire.output_format is None else response_grammar(wire.output_format, "output_format")


def conversation(wire: CountTokensRequest, late: LateTools) -> list[Message]:
    """The system prompt and the messages, in the shape that chat templates expect. `late` reads the messages too.

    Raises:
        InvalidInput: the messages are malformed; `fields["parameter"]` is the path of the error.
        UnsupportedParameter: the type of a block is not supported.
    """
    if not wire.messages:
        raise InvalidInput("`messages` must be a list with at least one message", parameter="messages")
    messages = _system(wire.system)
    for index, raw in enumerate(wire.messages):
        where = f"messages[{index}]"
        messages += _messages(late.described(raw, where), where)
    return messages


def _system(system: str | list[dict[str, Any]] | None) -> list[Message]:
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system or []
    kept = [block for block in blocks if not str(block.get("text", "")).startswith(_VOLATILE)]
    return [message_from_dict({"role": "system", "content": kept}, "system")] if kept else []


@dataclass(slots=True)
class _Turn:
    """The blocks of one message, sorted by kind."""

    texts: list[Mapping[str, Any] | PartGroup] = field(default_factory=list["Mapping[str, Any] | PartGroup"])
    """Blocks of text and images, and groups of them from documents."""
    thoughts: list[str] = field(default_factory=list[str])
    calls: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    results: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])


def _messages(raw: dict[str, Any], where: str) -> list[Message]:
    """Converts a message. Tool results are blocks of a user's message here, but separate messages in chat templates."""
    content = raw.get("content")
    if not isinstance(content, list):
        return [message_from_dict({"role": raw.get("role"), "content": content}, where)]
    turn = _Turn()
    blocks = cast("list[object]", content)
    hosted = [raw.get("role") == "assistant" and is_of_hosted_tool(block) for block in blocks]
    for index, block in enumerate(blocks):
        if hosted[index]:
            note_ignored(f"{where}.content[{index}]")
        else:
            _sort(turn, block, f"{where}.content[{index}]")
    own: dict[str, Any] = {"role": raw.get("role"), "content": turn.texts or None}
    if turn.thoughts:
        own["reasoning_content"] = "\n".join(turn.thoughts)
    if turn.calls:
        own["tool_calls"] = turn.calls
    has_own = turn.texts or turn.thoughts or turn.calls or not (turn.results or any(hosted))
    return [message_from_dict(message, where) for message in (*turn.results, *([own] if has_own else []))]


def _sort(turn: _Turn, block: object, where: str) -> None:
    if isinstance(block, PartGroup):
        turn.texts.append(block)
        return
    fields = cast("dict[str, Any]", block if isinstance(block, dict) else {})
    if fields.get("type") is None:
        raise InvalidInput(f"`{where}` must be an object with a `type`", parameter=where)
    match fields:
        case {"type": "text" | "image"}:
            turn.texts.append(fields)
        case {"type": "thinking", "thinking": str(thought)}:
            turn.thoughts.append(thought)
        case {"type": "tool_use", "id": str(call_id), "name": str(name)}:
            function: dict[str, Any] = {"name": name, "arguments": fields.get("input")}
            turn.calls.append({"id": call_id, "type": "function", "function": function})
        case {"type": "tool_result", "tool_use_id": str(call_id)}:
            content = _failure(fields.get("content")) if fields.get("is_error") is True else fields.get("content")
            turn.results.append({"role": "tool", "tool_call_id": call_id, "content": content})
        case {"type": "compaction", "content": str(summary)}:
            turn.texts.append({"type": "text", "text": summary})
        case {"type": "redacted_thinking" | "compaction"}:
            pass  # encrypted by Anthropic's servers, so it is unreadable here; or a summary that failed
        case {"type": "thinking" | "tool_use" | "tool_result" as kind}:
            raise InvalidInput(f"`{where}` is not a valid block of type {kind!r}", parameter=where)
        case _:
            message = f"`{where}`: blocks of type {fields['type']!r} are not supported, only text, images and documents"
            raise UnsupportedParameter(message, parameter=where)


def _failure(content: object) -> object:
    """The content of a failed tool result, marked as an error in its text: chat templates have no field for that."""
    if isinstance(content, list):
        return [{"type": "text", "text": _FAILURE}, *cast("list[object]", content)]
    if not isinstance(content, str) or content.lower().startswith("error"):
        return content or _FAILURE
    return f"{_FAILURE} {content}".rstrip()
