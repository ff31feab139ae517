"""The body of OpenAI's chat completions, which other endpoints use too: its type, its tables, and its prompt.

`None` means "not given".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stoker.chat.planning import Conversation, Thinking, prompt_question, recalled, rendered
from stoker.chat.thoughts import NO_THOUGHTS, Thoughts
from stoker.chat.tools import Tools, tools_of
from stoker.engine.question_messages import CountTokens
from stoker.errors import InvalidInput
from stoker.runtime.base import Runtime
from stoker.server.fields import FieldTable, Ignored, Refused, honoured, ignored
from stoker.server.request.fields import Int, TracedFields
from stoker.server.request.policies import NOTHING_GENERATED, SHARED
from stoker.text.messages import messages_from_dicts

MAX_TOP_LOGPROBS = 20
_REASONING_FORMATS = ("auto", "deepseek", "deepseek-legacy", "none")

_NO_TEMPLATE_KWARGS = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    include_usage: bool | None = None
    """True: a further chunk with the token counts precedes `[DONE]`."""
    continuous_usage_stats: bool | None = None
    """True: every chunk has the token counts so far (an addition of vLLM)."""


class ChatCompletionRequest(TracedFields, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: list[dict[str, Any]] | None = None
    """The conversation. `text.messages` reads it leniently, because clients write their histories in many forms."""
    n: Int | None = None
    """Number of answers. The prompt is computed only once."""
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    tools: list[dict[str, Any]] | None = None
    """Functions that the model may call, each with a name, a description and a JSON schema of its parameters; custom
    tools, which take a text."""
    tool_choice: str | dict[str, Any] | None = None
    """`auto`, `required`, `none`, one tool, or `allowed_tools`."""
    functions: list[dict[str, Any]] | None = None
    """Older form of `tools`."""
    function_call: str | dict[str, Any] | None = None
    """Older form of `tool_choice`."""
    parallel_tool_calls: bool | None = None
    """False: an answer has at most one call."""
    parse_tool_calls: bool | None = None
    """False: tool calls stay in the content, as the model writes them."""
    reasoning_format: str | None = None
    """`none` leaves the reasoning in the content, `deepseek-legacy` only in the content of streams. With `auto` and
    `deepseek` the reasoning has its own field."""
    reasoning_budget_tokens: Int | None = None
    """Maximum number of tokens of reasoning; -1 = no limit."""
    thinking_budget_tokens: Int | None = None
    """Another name of `reasoning_budget_tokens`."""
    thinking_token_budget: Int | None = None
    """vLLM's name of `reasoning_budget_tokens`."""
    reasoning_budget_message: str | None = None
    """Text that ends the reasoning when the budget is spent."""
    reasoning_control: bool | None = None
    """True: `/v1/chat/completions/control` can end the reasoning while it is written."""


class ChatPromptRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a chat completion's body that decide its prompt."""

    model: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    tools: list[dict[str, Any]] | None = None
    """Functions that the model may call, each with a name, a description and a JSON schema of its parameters; custom
    tools, which take a text."""
    tool_choice: str | dict[str, Any] | None = None
    """`auto`, `required`, `none`, one tool, or `allowed_tools`."""
    functions: list[dict[str, Any]] | None = None
    """Older form of `tools`."""
    function_call: str | dict[str, Any] | None = None
    """Older form of `tool_choice`."""


_CHAT: FieldTable = {
    "modalities": Refused("answers are text", (["text"], [])),
    "audio": Refused("answers are text"),
    "web_search_options": Refused("there is no web search"),
    "chat_template": Refused("the model's own template is used"),
    "verbosity": Ignored("local models have no such setting"),
    "prediction": Ignored("a predicted answer could only save time"),
}

CHAT_FIELDS: FieldTable = honoured(ChatCompletionRequest, SHARED, _CHAT)
CHAT_PROMPT_FIELDS: FieldTable = honoured(
    ChatPromptRequest, ignored(ChatCompletionRequest, NOTHING_GENERATED), SHARED, _CHAT
)


def chat_prompt(
    wire: ChatCompletionRequest | ChatPromptRequest, runtime: Runtime, thoughts: Thoughts = NO_THOUGHTS
) -> str:
    """The prompt of a conversation, rendered by the model's chat template, with stored reasoning inserted.

    Raises:
        InvalidInput: the messages are malformed, or the template refused them.
    """
    return rendered(recalled(conversation(wire), thoughts), runtime)


def chat_counting(wire: ChatCompletionRequest | ChatPromptRequest, runtime: Runtime, thoughts: Thoughts) -> CountTokens:
    """The question to the engine how many tokens the prompt has. Errors are those of `chat_prompt`."""
    return prompt_question(recalled(conversation(wire), thoughts), runtime)


def conversation(wire: ChatCompletionRequest | ChatPromptRequest) -> Conversation:
    """The conversation of a request, which decides its prompt.

    Raises:
        InvalidInput: the messages or the tools are malformed.
    """
    if wire.continue_final_message and wire.add_generation_prompt:
        message = "`continue_final_message` and `add_generation_prompt` cannot be combined"
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


def chat_thinking(wire: ChatCompletionRequest) -> Thinking:
    """A request's settings for reasoning.

    Raises:
        InvalidInput: `reasoning_format` is not one of llama-server's formats.
    """
    form = wire.reasoning_format or "auto"
    if form not in _REASONING_FORMATS:
        message = f"`reasoning_format` must be {', '.join(_REASONING_FORMATS)}, not {form[:40]!r}"
        raise InvalidInput(message, parameter="reasoning_format")
    budgets = (wire.reasoning_budget_tokens, wire.thinking_budget_tokens, wire.thinking_token_budget)
    budget = next((budget for budget in budgets if budget is not None), None)
    return Thinking(
        is_on=False if wire.reasoning_effort == "none" else None,
        budget=None if budget is None or budget < 0 else budget,
        closing_text=wire.reasoning_budget_message or "",
        can_be_ended=bool(wire.reasoning_control),
        stays_in_content=form == "none" or (form == "deepseek-legacy" and bool(wire.stream)),
    )


def template_kwargs(raw: Mapping[str, object] | None, reasoning_effort: str | None) -> dict[str, object]:
    """The variables that a request passes to the chat template.

    Raises:
        InvalidInput: a variable would replace the conversation.
    """
    given: dict[str, object] = dict(raw or {})
    if taken := _NO_TEMPLATE_KWARGS & given.keys():
        message = f"`chat_template_kwargs` cannot set {', '.join(sorted(taken))}"
        raise InvalidInput(message, parameter="chat_template_kwargs")
    if reasoning_effort is not None:
        given.setdefault("reasoning_effort", reasoning_effort)
    return given


def top_logprobs(top: int | None) -> int | None:
    """Checks and returns `top_logprobs`.

    Raises:
        InvalidInput: the number is out of range.
    """
    if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
        raise InvalidInput(f"`top_logprobs` must be between 0 and {MAX_TOP_LOGPROBS}", parameter="top_logprobs")
    return top
