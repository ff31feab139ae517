"""Converts requests of OpenAI's responses API to conversations and `GenerationRequest`s. Uses no connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import msgspec

from stoker.chat.constraints import response_grammar
from stoker.chat.planning import Conversation, Thinking, planned, prompt_question, recalled
from stoker.chat.thoughts import Thoughts
from stoker.chat.tools import tools_of
from stoker.core.outline import GrammarText
from stoker.core.params import SamplingParams
from stoker.engine.question_messages import CountTokens
from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.runtime.base import Runtime
from stoker.server.config import ServerConfig
from stoker.server.dialects.responses.client_tools import (
    CALLS,
    RESULTS,
    call_of_item,
    names_of_client_tools,
    plain_messages,
    result_of_item,
)
from stoker.server.dialects.responses.sealing import unsealed
from stoker.server.dialects.responses.shelf import bytes_of
from stoker.server.dialects.responses.summaries import since_summary, summary_in, summary_message
from stoker.server.dialects.responses.tools import (
    flat_tools,
    full_name,
    is_of_hosted_tool,
    namespace_of,
    own_choice,
)
from stoker.server.dialects.responses.types import ResponsePromptRequest, ResponsesRequest
from stoker.server.fields import note_ignored
from stoker.server.generation import GenerationRequest
from stoker.server.request.chat import template_kwargs, top_logprobs
from stoker.server.request.fields import GenerationFields, SamplingFields
from stoker.server.request.request import Caller, generation_request
from stoker.server.request.sampling import sampling_params, text_bias
from stoker.text.messages import Message, message_from_dict, message_to_dict

_LOGPROBS = "message.output_text.logprobs"
_SEALED = "reasoning.encrypted_content"

_MAX_REFERENCES = 10_000
"""Maximum number of `item_reference` in a request: each one is looked up on the event loop."""

_MAX_REFERENCED_BYTES = 64 * 2**20
"""Maximum size of the messages that a request's references name; a message counts once for each reference."""

NOT_OF_SUMMARIES = (
    *SamplingFields.__struct_fields__,
    "top_logprobs",
    "include",
    "parallel_tool_calls",
    "context_management",
)
"""Fields that have no effect on a summary."""

FindItem: TypeAlias = Callable[[str, str], Message]
"""Finds a stored message by its id and by the path at which the request names it."""


def input_messages(
    wire: ResponsesRequest | ResponsePromptRequest, find: FindItem, *, is_optional: bool = False
) -> tuple[Message, ...]:
    """The messages of a request's input, which may be missing with a conversation, or if it `is_optional`.

    Raises:
        InvalidInput: an item is malformed; `fields["parameter"]` is its path.
        UnsupportedParameter: the type of an item is not supported.
        ResponseNotFound: an item refers to a message that is not stored.
    """
    if wire.input is None and not (wire.conversation or is_optional):
        raise InvalidInput("`input` is missing", parameter="input")
    if wire.input is None or isinstance(wire.input, str):
        return () if wire.input is None else (Message(role="user", content=wire.input),)
    if not wire.input:
        raise InvalidInput("`input` is an empty list", parameter="input")
    items = wire.input[:-1] if wants_summary(wire) else wire.input
    return item_messages(items, "input", find)


def wants_summary(wire: ResponsesRequest | ResponsePromptRequest) -> bool:
    """Whether the last item of the input asks for a summary of the conversation, not for an answer."""
    return isinstance(wire.input, list) and bool(wire.input) and wire.input[-1].get("type") == "compaction_trigger"


def item_messages(items: Sequence[Mapping[str, Any]], where: str, find: FindItem) -> tuple[Message, ...]:
    """Converts items to messages; an empty list to no messages.

    Raises:
        InvalidInput: an item is malformed; `fields["parameter"]` is its path.
        UnsupportedParameter: the type of an item is not supported.
        ResponseNotFound: an item refers to a message that is not stored.
    """
    if sum(item.get("type") == "item_reference" for item in items) > _MAX_REFERENCES:
        raise InvalidInput(f"`{where}` has over {_MAX_REFERENCES} items of type item_reference", parameter=where)
    raw = _with_reasoning(dict(_chat_messages(items, where, _bounded(find))))
    if items and not raw:
        raise InvalidInput(f"`{where}` has no message in it", parameter=where)
    return tuple(message_from_dict(item, f"{where}[{index}]") for index, item in raw)


def _bounded(find: FindItem) -> FindItem:
    """The same search, which raises InvalidInput when all found messages together are too large."""
    left = _MAX_REFERENCED_BYTES

    def bounded(item_id: str, where: str) -> Message:
        nonlocal left
        message = find(item_id, where)
        left -= bytes_of([message])
        if left < 0:
            raise InvalidInput("the items that are referred to are too large together", parameter=where)
        return message

    return bounded


def conversation_id_of(wire: ResponsesRequest | ResponsePromptRequest) -> str | None:
    """The id of the conversation that the response belongs to; None if it belongs to none.

    Raises:
        InvalidInput: `conversation` is malformed, or is combined with `previous_response_id`.
    """
    named = wire.conversation.get("id") if isinstance(wire.conversation, dict) else wire.conversation
    if named is None and wire.conversation is None:
        return None
    if not isinstance(named, str) or not named:
        raise InvalidInput("`conversation` must be the id of one, or an object with an `id`", parameter="conversation")
    if wire.previous_response_id:
        message = "`conversation` and `previous_response_id` cannot be combined"
        raise InvalidInput(message, parameter="conversation")
    return named


def response_request(
    wire: ResponsesRequest, messages: Sequence[Message], runtime: Runtime, caller: Caller, config: ServerConfig
) -> GenerationRequest:
    """The generation that a responses request asks for.

    Args:
        wire: the request.
        messages: the whole conversation with earlier turns, but without the instructions.
        runtime: runtime of the model, whose chat template renders the prompt.
        caller: the client.
        config: the settings of the server.

    Raises:
        InvalidInput: a field is invalid, or the chat template refused the messages.
        UnsupportedParameter: a tool or a combination of fields is not supported.
    """
    sampling, grammar = _settings(wire)
    asked = replace(asked_conversation(wire, messages), grammar=grammar)
    if wire.parallel_tool_calls is False:
        asked = replace(asked, tools=replace(asked.tools, parallel=False))
    plan = planned(recalled(asked, caller.thoughts), runtime)
    return generation_request(wire, [plan.prompt], sampling, caller, config, plan=plan)


def compact_threshold(wire: ResponsesRequest, context_size: int) -> int | None:
    """Number of tokens of the prompt above which the conversation is compacted before the answer; None = never."""
    if not wire.context_management:
        return None
    (entry,) = wire.context_management
    return 3 * context_size // 4 if entry.compact_threshold is None else entry.compact_threshold


def summary_fields(wire: ResponsesRequest) -> GenerationFields:
    """The fields of a request that also apply if it asks for a summary; notes the others as ignored.

    Errors are those of `response_request`: fields without effect are checked, too.
    """
    _settings(wire)
    text_bias(wire)
    for name in NOT_OF_SUMMARIES:
        if getattr(wire, name) is not None:
            note_ignored(name)
    note_format(wire)
    return msgspec.structs.replace(wire, **dict.fromkeys(NOT_OF_SUMMARIES))


def note_format(wire: ResponsesRequest | ResponsePromptRequest) -> None:
    """Notes the format of a request for a summary as ignored, if it has one.

    Raises:
        InvalidInput: the format is malformed.
        UnsupportedParameter: the format is not supported.
    """
    if _grammar(wire) is not None:
        note_ignored("text.format")


def seals_reasoning(wire: ResponsesRequest) -> bool:
    """Whether the client wants the reasoning as one opaque text too, which it can send back; see `sealing`."""
    return _SEALED in (wire.include or ())


def response_counting(
    wire: ResponsesRequest | ResponsePromptRequest, messages: Sequence[Message], runtime: Runtime, thoughts: Thoughts
) -> CountTokens:
    """The question to the engine how many tokens a response's prompt has, with stored reasoning inserted.

    Errors are those of `response_request`.
    """
    return prompt_question(recalled(asked_conversation(wire, messages), thoughts), runtime)


def asked_conversation(wire: ResponsesRequest | ResponsePromptRequest, messages: Sequence[Message]) -> Conversation:
    """The conversation with the instructions and tools of a request. Errors are those of `response_request`."""
    instructions = [Message(role="system", content=wire.instructions)] if wire.instructions else []
    effort = wire.reasoning.effort if wire.reasoning is not None else None
    names = names_of_client_tools(wire.tools or ())
    return Conversation(
        messages=[*instructions, *plain_messages(since_summary(messages), names)],
        tools=tools_of(flat_tools(wire.tools or (), names), own_choice(wire.tool_choice, names)),
        thinking=Thinking(is_on=False if effort == "none" else None, is_preference=True),
        template_kwargs=template_kwargs(wire.chat_template_kwargs, effort),
    )


def _settings(wire: ResponsesRequest) -> tuple[SamplingParams, GrammarText | None]:
    """The sampling and the grammar that a request asks for, whose fields are checked."""
    if wire.background and wire.store is False:
        raise InvalidInput("`background` needs `store`, because the response is fetched later", parameter="background")
    if wire.context_management and len(wire.context_management) > 1:
        message = "`context_management` must have one entry; leave out the others"
        raise InvalidInput(message, parameter="context_management")
    return sampling_params(wire, _logprobs(wire)), _grammar(wire)


def _grammar(wire: ResponsesRequest | ResponsePromptRequest) -> GrammarText | None:
    return response_grammar(wire.text.format, "text.format") if wire.text and wire.text.format else None


def _logprobs(wire: ResponsesRequest) -> int | None:
    top = top_logprobs(wire.top_logprobs)
    return (top or 0) if top or _LOGPROBS in (wire.include or ()) else None


def _chat_messages(
    items: Sequence[Mapping[str, Any]], where: str, find: FindItem
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the items as chat messages, by index, without those of tools that OpenAI's servers ran."""
    for index, item in enumerate(items):
        if is_of_hosted_tool(item):
            note_ignored(f"{where}[{index}]")
        else:
            yield index, _chat_message(item, f"{where}[{index}]", find)


def _chat_message(item: Mapping[str, Any], where: str, find: FindItem) -> dict[str, Any]:
    """Converts an item to the shape of a chat message; a reasoning item to an object with `reasoning` alone."""
    kind = item.get("type")
    match kind:
        case "message" | None:
            return {name: item.get(name) for name in ("role", "content", "name")}
        case "function_call":
            function = {"name": full_name(item), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function, **namespace_of(item)}
            return {"role": "assistant", "tool_calls": [call]}
        case "custom_tool_call":
            custom = {"name": full_name(item), "input": item.get("input")}
            call = {"id": item.get("call_id"), "type": "custom", "custom": custom, **namespace_of(item)}
            return {"role": "assistant", "tool_calls": [call]}
        case "function_call_output":
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
        case str() if kind in CALLS:
            return {"role": "assistant", "tool_calls": [call_of_item(item, where)]}
        case str() if kind in RESULTS:
            return result_of_item(item, where)
        case "item_reference":
            message = find(str(item.get("id") or ""), where)
            calls = {"tool_calls": [*message.tool_calls]} if message.tool_calls else {}
            return {**message_to_dict(message), "content": message.content, **calls}
        case "reasoning":
            return {"reasoning": _reasoning(item, where)}
        case "compaction" | "compaction_summary":
            return summary_message(summary_in(item) or "")
        case _:
            message = f"`{where}`: items of type {kind!r} are not supported here"
            raise UnsupportedParameter(message, parameter=where)


def _reasoning(item: Mapping[str, Any], where: str) -> str:
    sealed = item.get("encrypted_content")
    if not item.get("content") and isinstance(sealed, str) and (text := unsealed(sealed)) is not None:
        return text
    raw: Any = item.get("content") or item.get("summary") or []
    parts = cast("list[Any]", raw) if isinstance(raw, list) else [raw]
    if not all(isinstance(part, dict) for part in parts):
        raise InvalidInput(f"`{where}` must have a list of parts", parameter=where)
    return "".join(str(part.get("text") or "") for part in parts)


def _is_thought(message: Mapping[str, Any]) -> bool:
    """Whether a converted item is reasoning without content and calls, given directly or by reference."""
    has_more = message.get("content") or message.get("tool_calls")
    return "reasoning" in message and ("role" not in message or not has_more)


def _with_reasoning(raw: Mapping[int, dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Joins reasoning to the assistant's message after it, and calls to the one before; returns them by item index."""
    messages: list[tuple[int, dict[str, Any]]] = []
    thought = ""
    for index, message in raw.items():
        if _is_thought(message):
            thought += message["reasoning"]
        elif thought and message.get("role") == "assistant":
            messages.append((index, {**message, "reasoning": thought}))
            thought = ""
        elif "tool_calls" in message and messages and messages[-1][1].get("role") == "assistant":
            messages[-1][1].setdefault("tool_calls", []).extend(message["tool_calls"])
        else:
            thought = ""  # drop reasoning whose answer was cut off before any text
            messages.append((index, message))
    return messages
