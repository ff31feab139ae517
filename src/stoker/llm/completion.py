"""Results of `LLM`: one answer with its reasoning and its tool calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import cast

from stoker.chat.answers import Part, ToolCalls, reasoning_of, text_of
from stoker.engine.cards import ModelCard
from stoker.engine.protocol import Output, PositionLogprobs, Usage
from stoker.errors import InvalidInput
from stoker.llm.functions import ToolFunction, result_text
from stoker.text.chat_formats.custom import INPUT
from stoker.text.messages import Json, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call of the model."""

    id: str
    name: str
    arguments: str
    """JSON as the model wrote it, or the text for a custom tool; incomplete if the answer was cut off."""
    is_complete: bool = True
    is_custom: bool = False
    """The tool is a custom tool, which takes text instead of JSON."""
    function: ToolFunction | None = field(default=None, repr=False, compare=False)
    """The Python function, if the tool is one."""

    @property
    def values(self) -> dict[str, object]:
        """The arguments by name. The text for a custom tool has the name `input`.

        Raises:
            InvalidInput: the arguments are not a JSON object.
        """
        if self.is_custom:
            return {INPUT: self.arguments}
        try:
            values = json.loads(self.arguments or "{}")
        except ValueError as error:
            raise InvalidInput(
                f"the arguments of `{self.name}` are not valid JSON: {error}", parameter=self.name
            ) from error
        if not isinstance(values, dict):
            raise InvalidInput(f"the arguments of `{self.name}` are not a JSON object", parameter=self.name)
        return cast("dict[str, object]", values)

    @property
    def as_json(self) -> str:
        """The arguments as a JSON string."""
        return json.dumps(self.values, ensure_ascii=False) if self.is_custom else self.arguments or "{}"

    def run(self) -> object:
        """Calls the Python function with these arguments. The result of an `async def` is awaitable.

        Raises:
            InvalidInput: the tool is not a Python function, or the arguments do not fit its parameters.
        """
        if self.function is None:
            raise InvalidInput(f"the tool `{self.name}` is a definition, not a function", parameter=self.name)
        return self.function(self.values)

    def result(self, result: object) -> Message:
        """The message with the result for the model: text unchanged, other values as JSON."""
        return Message(role="tool", name=self.name, tool_call_id=self.id, content=result_text(result))


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer."""

    text: str
    """The content, without reasoning and tool calls."""
    reasoning: str = ""
    """The reasoning of the model before the answer."""
    tool_calls: Sequence[ToolCall] = ()
    """In the order in which the model wrote them."""
    token_ids: list[int] = field(repr=False)
    """Sampled tokens, including an end-of-generation token."""
    finish_reason: str
    """`stop`, `tool_calls`, `cancelled`, or `length`: `max_tokens` or the default length was reached, or the context is
    full."""
    usage: Usage
    logprobs: list[PositionLogprobs] | None = field(default=None, repr=False)
    """One entry per token, if `SamplingParams.logprobs` is set."""
    stop_match: str | int | None = None
    """The stop string or stop token id that ended the answer; None = the answer ended for another reason."""
    parse: Callable[[str], object] | None = field(default=None, repr=False, compare=False)
    """Converts the text to `parsed`, if the text is constrained to JSON."""

    @property
    def parsed(self) -> object:
        """The text as a value of the class in `response_format`, or as plain JSON for a schema.

        None if there is no such format, or if the answer is incomplete. Validators of the class that the schema does
        not express, such as Python validators, may raise their errors here.
        """
        return self.parse(self.text) if self.parse is not None and self.finish_reason == "stop" else None

    @property
    def message(self) -> Message:
        """The answer as a message, for the next request of the conversation; an incomplete call is left out."""
        calls: list[dict[str, Json]] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.as_json}}
            for call in self.tool_calls
            if call.is_complete
        ]
        return Message(role="assistant", content=self.text, reasoning=self.reasoning or None, tool_calls=tuple(calls))

    def __str__(self) -> str:
        """The text without reasoning and tool calls."""
        return self.text

    def _repr_markdown_(self) -> str:
        """Markdown for Jupyter."""
        calls = [f"`{call.name}({call.arguments})`" for call in self.tool_calls]
        return "\n\n".join(filter(None, [self.text, *calls]))


def model_table(card: ModelCard, state: str) -> str:
    """A loaded model and its sizes as HTML, for notebooks."""
    rows = {
        "model": card.name,
        "state": state,
        "backend": f"{card.backend} ({card.architecture})",
        "context size": f"{card.context_size:,} tokens",
        "KV cache": f"{card.kv_tokens:,} tokens",
        "concurrent requests": f"{card.parallel}",
    }
    cells = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows.items())
    return f"<table>{''.join(cells)}</table>"


def completion_of(
    request_id: str,
    parts: Iterable[Part],
    last: Output,
    *,
    token_ids: Sequence[int],
    logprobs: Sequence[PositionLogprobs] | None,
    parse: Callable[[str], object] | None,
    functions: Mapping[str, ToolFunction],
) -> Completion:
    """The completion that consists of the given parts.

    Args:
        request_id: makes the ids of tool calls differ from those of other answers.
        parts: content, reasoning and tool calls in the order of generation.
        last: the last output of the engine.
        token_ids: the sampled tokens of all outputs.
        logprobs: the log probabilities of all outputs; None = not requested.
        parse: see `Completion.parse`.
        functions: the tools that are Python functions.
    """
    parts = list(parts)
    calls = ToolCalls("call_", request_id).push_all(parts)
    reason = last.finish_reason or "cancelled"
    return Completion(
        text=text_of(parts),
        reasoning=reasoning_of(parts),
        tool_calls=tuple(
            ToolCall(
                id=call.call_id,
                name=call.name,
                arguments=call.arguments,
                is_complete=call.is_complete,
                is_custom=call.is_custom,
                function=functions.get(call.name),
            )
            for call in calls.calls
        ),
        token_ids=list(token_ids),
        finish_reason="tool_calls" if calls.has_complete and reason == "stop" else reason,
        usage=last.usage,
        logprobs=None if logprobs is None else list(logprobs),
        stop_match=last.stop_match,
        parse=parse,
    )
