"""An OpenAI request becomes a `GenerationRequest`: prompts and numbers. Nothing here touches a connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from stoker.engine.cards import ModelCard
from stoker.engine.protocol import Prompt
from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.runtime.base import Runtime
from stoker.server.config import ServerConfig
from stoker.server.dialects.openai.types import ChatCompletionRequest, ChatPromptRequest, CompletionRequest
from stoker.server.generation import GenerationRequest
from stoker.server.request.constraints import grammar_of, text_plan
from stoker.server.request.infill import infill_prompt
from stoker.server.request.planning import Conversation, Thinking, planned, rendered
from stoker.server.request.request import Caller, generation_request
from stoker.server.request.sampling import sampling_params
from stoker.server.request.tools import Tools, tools_of
from stoker.text.messages import messages_from_dicts

MAX_TOP_LOGPROBS = 20

_NO_TEMPLATE_KWARGS = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})


def chat_request(
    wire: ChatCompletionRequest, runtime: Runtime, caller: Caller, config: ServerConfig
) -> GenerationRequest:
    """What a chat completion asks of the engine.

    Raises:
        InvalidInput: something cannot be done as asked, or the chat template refused the messages.
    """
    sampling = sampling_params(wire, _chat_logprobs(wire))
    asked = replace(conversation(wire), thinking=_thinking(wire), grammar=grammar_of(wire))
    if wire.parallel_tool_calls is False:
        asked = replace(asked, tools=replace(asked.tools, parallel=False))
    plan = planned(asked, runtime)
    return generation_request(wire, [plan.prompt], sampling, caller, config, n=wire.n, plan=plan)


def completion_request(
    wire: CompletionRequest, card: ModelCard, caller: Caller, config: ServerConfig
) -> GenerationRequest:
    """What a completion asks of the engine.

    Raises:
        InvalidInput: something cannot be done as asked.
    """
    sampling = sampling_params(wire, wire.logprobs)
    prompts = _prompts(wire)
    if wire.stream and wire.best_of is not None and wire.best_of > (wire.n or 1):
        message = "`best_of` cannot be streamed: the best answer is known when all of them are complete"
        raise InvalidInput(message, parameter="best_of")
    if wire.suffix:
        prompts = [_infill(card, prompt, wire) for prompt in prompts]
    return generation_request(
        wire,
        prompts,
        sampling,
        caller,
        config,
        n=wire.n,
        best_of=wire.best_of,
        echo=bool(wire.echo),
        parse_special=not wire.suffix,
        plan=text_plan(wire),
    )


def chat_prompt(wire: ChatCompletionRequest | ChatPromptRequest, runtime: Runtime) -> str:
    """The prompt of a conversation, by the model's template.

    Raises:
        InvalidInput: the messages are malformed, or the template refused them.
    """
    return rendered(conversation(wire), runtime)


def conversation(wire: ChatCompletionRequest | ChatPromptRequest) -> Conversation:
    """The part of a request that decides its prompt.

    Raises:
        InvalidInput: the messages or the tools are malformed.
    """
    if wire.continue_final_message and wire.add_generation_prompt:
        message = "`continue_final_message` and `add_generation_prompt` exclude each other"
        raise InvalidInput(message, parameter="continue_final_message")
    return Conversation(
        messages=messages_from_dicts(wire.messages),
        tools=_tools(wire),
        add_generation_prompt=wire.add_generation_prompt is not False,
        continue_final_message=bool(wire.continue_final_message),
        template_kwargs=template_kwargs(wire.chat_template_kwargs, wire.reasoning_effort),
    )


def _tools(wire: ChatCompletionRequest | ChatPromptRequest) -> Tools:
    """`tools` and `tool_choice`, or their older forms."""
    if wire.functions is None and wire.function_call is None:
        return tools_of(wire.tools, wire.tool_choice)
    if wire.tools is not None or wire.tool_choice is not None:
        raise InvalidInput("`functions` is an older form of `tools`: give only one of them", parameter="functions")
    choice = wire.function_call
    if isinstance(choice, dict):
        choice = {"type": "function", "function": choice}
    return tools_of([{"type": "function", "function": each} for each in wire.functions or ()], choice)


def _thinking(wire: ChatCompletionRequest) -> Thinking:
    budgets = (wire.reasoning_budget_tokens, wire.thinking_budget_tokens, wire.thinking_token_budget)
    budget = next((budget for budget in budgets if budget is not None), None)
    return Thinking(
        is_on=False if wire.reasoning_effort == "none" else None,
        budget=None if budget is None or budget < 0 else budget,
        closing_text=wire.reasoning_budget_message or "",
        stays_in_content=wire.reasoning_format == "none",
    )


def template_kwargs(raw: Mapping[str, object] | None, reasoning_effort: str | None) -> dict[str, object]:
    """The variables that a request gives to the template.

    Raises:
        InvalidInput: one of them would replace the conversation.
    """
    given: dict[str, object] = dict(raw or {})
    if taken := _NO_TEMPLATE_KWARGS & given.keys():
        message = f"`chat_template_kwargs` cannot set {', '.join(sorted(taken))}"
        raise InvalidInput(message, parameter="chat_template_kwargs")
    if reasoning_effort is not None:
        given.setdefault("reasoning_effort", reasoning_effort)
    return given


def top_logprobs(top: int | None) -> int | None:
    """`top_logprobs`, checked.

    Raises:
        InvalidInput: out of range.
    """
    if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
        raise InvalidInput(f"`top_logprobs` must be between 0 and {MAX_TOP_LOGPROBS}", parameter="top_logprobs")
    return top


def _chat_logprobs(wire: ChatCompletionRequest) -> int | None:
    top = top_logprobs(wire.top_logprobs)
    if wire.logprobs:
        return top or 0
    if top:
        raise InvalidInput("`top_logprobs` needs `logprobs` to be true", parameter="top_logprobs")
    return None


def _prompts(wire: CompletionRequest) -> list[Prompt]:
    raw = wire.prompt
    if raw is None:
        raise InvalidInput("`prompt` is missing", parameter="prompt")
    if isinstance(raw, str):
        return [raw]
    if not raw:
        raise InvalidInput("`prompt` is an empty list", parameter="prompt")
    if all(isinstance(item, int) for item in raw):
        return [cast("list[int]", raw)]
    if all(isinstance(item, str) for item in raw) or all(isinstance(item, list) for item in raw):
        return cast("list[Prompt]", raw)
    raise InvalidInput("`prompt` mixes texts, token ids and lists of token ids", parameter="prompt")


def _infill(card: ModelCard, prompt: Prompt, wire: CompletionRequest) -> Prompt:
    if not isinstance(prompt, str):
        raise UnsupportedParameter("`suffix` needs a prompt in text, not in token ids", parameter="suffix")
    if wire.echo:
        raise UnsupportedParameter("`suffix` and `echo` exclude each other", parameter="suffix")
    return infill_prompt(card, prompt, wire.suffix or "")
