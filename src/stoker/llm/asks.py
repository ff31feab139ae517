"""Turns the arguments of `LLM.generate` and `LLM.chat` into requests to the engine, with the code of the server.

Nothing is sent to the engine here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from stoker.chat.constraints import response_grammar, schema_grammar, structured_grammar
from stoker.chat.planning import ChatModel, Thinking, planned
from stoker.chat.planning import Conversation as Planned
from stoker.chat.tools import NO_TOOLS, Tools, tools_of
from stoker.core.media import Media
from stoker.core.outline import GrammarText, Outline
from stoker.core.params import SamplingParams, real_number
from stoker.engine.question_messages import AdapterChoice
from stoker.errors import InvalidInput
from stoker.llm.functions import ToolFunction, split_tools
from stoker.llm.inputs import Conversation, Prompt, as_adapters, as_messages
from stoker.llm.options import ChatOptions, TextOptions
from stoker.llm.schemas import loaded_json, parser_of, schema_of
from stoker.text.chat_formats.reader import Reader

_OPENAI_KINDS = frozenset({"text", "json_object", "json_schema"})
_VLLM_KINDS = frozenset({"json", "regex", "choice", "grammar", "json_object", "structural_tag"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request to the engine, and how its answer is parsed."""

    prompt: Prompt
    sampling: SamplingParams
    adapters: list[AdapterChoice] | None = None
    outline: Outline | None = None
    reader: Callable[[], Reader] | None = None
    parse: Callable[[str], object] | None = None
    """Converts the text of the answer to `Completion.parsed`; None = the text is not constrained to JSON."""
    media: tuple[Media, ...] = ()
    """Files whose markers are in the prompt."""
    functions: Mapping[str, ToolFunction] = field(default_factory=dict[str, ToolFunction])
    """The tools that are Python functions."""
    timeout_s: float | None = None
    """Maximum time from submission to the end of the answer, in seconds; None = no limit."""


def text_ask(prompt: Prompt, sampling: SamplingParams, lora: object, options: TextOptions) -> Ask:
    """The request that completes a prompt. No chat template is applied.

    Raises:
        InvalidInput: an option is malformed.
    """
    grammar, parse = _format(options.get("response_format"))
    outline = None if grammar is None else Outline(grammar=grammar)
    return Ask(
        prompt=prompt,
        sampling=sampling,
        adapters=as_adapters(lora),
        outline=outline,
        parse=parse,
        timeout_s=_timeout_s(options),
    )


def chat_ask(
    model: ChatModel, messages: Conversation, sampling: SamplingParams, lora: object, options: ChatOptions
) -> Ask:
    """The request that answers a conversation. This runs the chat template.

    Raises:
        InvalidInput: a message or an option is malformed, the model cannot do what is asked, or the template refused
            the messages.
    """
    grammar, parse = _format(options.get("response_format"))
    tools, functions = _tools(options)
    asked = Planned(
        messages=as_messages(messages, takes_images="image" in model.card.media),
        tools=tools,
        thinking=_thinking(options.get("reasoning")),
        grammar=grammar,
        template_kwargs=options.get("template_kwargs") or {},
    )
    plan = planned(asked, model)
    return Ask(
        prompt=plan.prompt,
        sampling=sampling,
        adapters=as_adapters(lora),
        outline=plan.outline,
        reader=plan.reader,
        parse=parse,
        functions=functions,
        media=plan.media,
        timeout_s=_timeout_s(options),
    )


def _timeout_s(options: TextOptions) -> float | None:
    given = options.get("timeout")
    seconds = None if given is None else real_number("timeout", given)
    if seconds is not None and not seconds > 0:
        raise InvalidInput(f"`timeout` must be above 0 seconds, not {seconds:g}", parameter="timeout")
    return seconds


def _format(given: object) -> tuple[GrammarText | None, Callable[[str], object] | None]:
    """The grammar of a `response_format`, and the function that parses the text; None = no grammar, no parser."""
    where = "response_format"
    if given is None:
        return None, None
    if not isinstance(given, Mapping):
        if isinstance(given, str | bytes | int | float | list | tuple):
            kind = type(cast("object", given)).__name__
            raise InvalidInput(f"`{where}` must be a class or a dict, not {kind}", parameter=where)
        return schema_grammar(schema_of(given, where), where), parser_of(given)
    values = cast("Mapping[str, Any]", given)
    if values.get("type") in _OPENAI_KINDS:
        grammar = response_grammar(values, where)
    elif _VLLM_KINDS & values.keys():
        grammar = structured_grammar(values, where)
    else:
        grammar = schema_grammar(dict(values), where)
    is_json = grammar is not None and grammar.kind in ("json_schema", "json_object")
    return grammar, loaded_json if is_json else None


def _tools(options: ChatOptions) -> tuple[Tools, dict[str, ToolFunction]]:
    definitions, functions = split_tools(options.get("tools"))
    choice: object = options.get("tool_choice")
    if not definitions and choice is None:
        return NO_TOOLS, functions
    if callable(choice):
        choice = getattr(choice, "__name__", choice)
    return tools_of(definitions, choice, parallel=options.get("parallel_tool_calls")), functions


def _thinking(given: object) -> Thinking:
    where = "reasoning"
    match given:
        case None:
            return Thinking()
        case bool():
            return Thinking(is_on=given)
        case int():
            return Thinking(is_on=True, budget=_budget(given))
        case str():
            return Thinking(is_on=False if given == "none" else None, effort=given)
        case Mapping():
            return _detailed(cast("Mapping[str, object]", given))
        case _:
            message = f"`{where}` must be true, false, a number of tokens, an effort, or a dict of these"
            raise InvalidInput(message, parameter=where)


def _detailed(given: Mapping[str, object]) -> Thinking:
    enabled, effort, budget = (given.get(name) for name in ("enabled", "effort", "budget"))
    if unknown := given.keys() - {"enabled", "effort", "budget"}:
        message = f"`reasoning` has no {sorted(unknown)[0]!r}; it has enabled, effort and budget"
        raise InvalidInput(message, parameter="reasoning")
    if not (isinstance(enabled, bool | None) and isinstance(effort, str | None) and isinstance(budget, int | None)):
        message = "`reasoning`: enabled must be true or false, effort a text, and budget a number of tokens"
        raise InvalidInput(message, parameter="reasoning")
    is_on = False if effort == "none" else enabled
    return Thinking(is_on=is_on, effort=effort, budget=None if budget is None else _budget(budget))


def _budget(num_tokens: int) -> int:
    if num_tokens < 0:
        raise InvalidInput(f"`reasoning` must be at least 0 tokens, not {num_tokens}", parameter="reasoning")
    return num_tokens
