"""Turns a conversation and its constraints into a prompt, an outline for the engine and a reader of the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, Unpack

from stoker.chat.thoughts import Thoughts
from stoker.chat.tools import NO_TOOLS, Tools, generic_calls
from stoker.core.media import Media
from stoker.core.outline import GrammarText, Outline, ReasoningSpan
from stoker.engine.cards import ModelCard, media_refused
from stoker.engine.question_messages import CountTokens
from stoker.errors import InvalidInput, TemplateError, UnsupportedParameter
from stoker.text.chat_formats.grammar import call_grammar
from stoker.text.chat_formats.probe import ChatFormat
from stoker.text.chat_formats.reader import Reader
from stoker.text.chat_formats.table import CHATML_END, GENERIC, Format, marker_tokens
from stoker.text.media_parts import MediaPart, media_of_parts
from stoker.text.messages import Message, RenderOptions, TextPart


class ChatModel(Protocol):
    """A model's properties and chat template, as needed to prepare a request. Safe to use from any thread."""

    @property
    def card(self) -> ModelCard:
        """The model's card."""
        ...

    @property
    def chat_format(self) -> ChatFormat:
        """How the model reasons and calls tools."""
        ...

    def render_chat(self, messages: Sequence[Message], **options: Unpack[RenderOptions]) -> str:
        """The prompt text of a conversation, by the model's own chat template.

        Raises:
            TemplateError: the template refused the messages.
        """
        ...


_THINKING_VARIABLES = ("enable_thinking", "thinking")
"""Template variables that turn reasoning on or off. Both names are set, and a template reads the one that it knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """A request's settings for reasoning."""

    is_on: bool | None = None
    """Whether the model reasons; None = the default of the chat template."""
    effort: str | None = None
    budget: int | None = None
    """Maximum number of reasoning tokens; None = no limit."""
    closing_text: str = ""
    """Text that is inserted before the end marker, when the budget or the client ends the reasoning."""
    can_be_ended: bool = False
    """The client may end the reasoning during generation."""
    stays_in_content: bool = False
    """Reasoning is not separated from the content of the answer."""
    is_preference: bool = False
    """True: a model that cannot follow `is_on` causes no error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation, and the constraints on its answer."""

    messages: Sequence[Message]
    tools: Tools = NO_TOOLS
    thinking: Thinking = field(default_factory=Thinking)
    reads_calls: bool = True
    """False: tool calls are not parsed, and appear in the content as the model writes them."""
    grammar: GrammarText | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The request to the engine for one conversation, and how to parse its answer."""

    prompt: str
    outline: Outline | None = None
    media: tuple[Media, ...] = ()
    """Files whose markers are in the prompt."""
    reader: Callable[[], Reader] | None = None
    """Makes the parser of the answer for one choice; None = the whole text is content."""


def recalled(asked: Conversation, thoughts: Thoughts) -> Conversation:
    """The conversation, with remembered reasoning restored in messages with tool calls whose client left it out."""
    if not any(message.tool_calls for message in asked.messages):
        return asked
    return replace(asked, messages=thoughts.filled_in(asked.messages))


def planned(asked: Conversation, model: ChatModel) -> Plan:
    """The plan for a conversation. This runs the chat template, so call it on an event loop only inside `briefly`.

    Raises:
        InvalidInput: the model cannot do what is requested, or the chat template refused the messages.
    """
    prompt, media = _rendered(asked, model)
    chat_format = model.chat_format
    begun = _begun_thought(asked, model)
    ends = (CHATML_END,) if model.card.chat_template is None else ()
    opening = prompt.removesuffix(begun)
    callables = asked.tools.callable
    reads_thinking = chat_format.can_think and not asked.thinking.stays_in_content
    if asked.thinking.is_on and not asked.thinking.is_preference and not chat_format.can_think:
        raise InvalidInput(
            "this model does not support reasoning: its chat template has no markers", parameter="thinking"
        )
    if callables and chat_format.row.calls is None:
        message = "tool calls are turned off for this model by `tool_format`"
        raise UnsupportedParameter(message, parameter="tools")
    row, grammar = _constrained(asked, chat_format.row, opening, model.card)
    if asked.thinking.stays_in_content or not (callables or reads_thinking):
        row = replace(row, thinking=("", ""))
    if not (callables or reads_thinking or row.wrappers):
        outline = Outline(grammar=grammar, begun=_begun_content(asked), ends=ends) if grammar or ends else None
        return Plan(prompt=prompt, outline=outline, media=media)
    read_row = row if asked.reads_calls else replace(row, calls=None)
    tokens = marker_tokens(read_row) & frozenset(model.card.marker_tokens)
    span = _span(asked.thinking, row, opening, has_tools=bool(callables)) if reads_thinking else None
    outline = Outline(
        grammar=grammar,
        begun=_begun_content(asked),
        reasoning=span,
        markers=tuple(sorted(tokens)),
        hides_stops=True,
        ends=ends,
    )
    reader = partial(
        Reader,
        read_row,
        (callables or None) if asked.reads_calls else None,
        tokens=tokens,
        opening=opening,
        max_calls=asked.tools.choice.max_calls,
        custom=frozenset(asked.tools.custom),
        is_continued=bool(begun),
    )
    return Plan(prompt=prompt, outline=outline, reader=reader, media=media)


def rendered(asked: Conversation, model: ChatModel) -> str:
    """The text of the prompt. A marker stands for each image and recording.

    Raises:
        InvalidInput: the chat template refused the messages, or left out an image or a recording.
        UnsupportedParameter: the model does not accept a kind of file in the messages.
    """
    return _rendered(asked, model)[0]


def prompt_question(asked: Conversation, model: ChatModel) -> CountTokens:
    """The question to the engine how many tokens the prompt has, including files. For errors see `rendered`."""
    return CountTokens(*_rendered(asked, model))


def _rendered(asked: Conversation, model: ChatModel) -> tuple[str, tuple[Media, ...]]:
    """The prompt's text, and the files whose markers are in it. For errors see `rendered`."""
    asked = _with_readable_results(asked, model.card)
    media = media_of(asked.messages)
    check_media(model.card, media)
    prompt = _render(asked, model)
    if any(file.marker not in prompt for file in media):
        raise TemplateError("the chat template leaves out an image or a recording of the messages")
    return prompt, media


def _with_readable_results(asked: Conversation, card: ModelCard) -> Conversation:
    """The conversation, with files in tool results replaced by a text if the model does not accept them.

    The model chose the call, not the user, and the result stays in the history: an error would end the conversation.
    """
    if not any(message.role == "tool" for message in asked.messages):
        return asked
    return replace(asked, messages=[_readable(message, card) for message in asked.messages])


def _readable(message: Message, card: ModelCard) -> Message:
    if message.role != "tool" or not isinstance(message.content, tuple):
        return message
    parts = [
        TextPart(f"[{part.media.kind} left out: this model takes no such files]")
        if isinstance(part, MediaPart) and part.media.kind not in card.media
        else part
        for part in message.content
    ]
    return replace(message, content=tuple(parts))


def _begun_thought(asked: Conversation, model: ChatModel) -> str:
    """The reasoning that the answer continues; empty if it continues none."""
    last = asked.messages[-1]
    has_more = bool(last.content or last.tool_calls)
    is_begun = asked.continue_final_message and not has_more and last.role == "assistant"
    return last.reasoning or "" if is_begun and model.chat_format.can_think else ""


def _begun_content(asked: Conversation) -> str:
    """The content that the answer continues, if a grammar constrains content and answer as one text; else empty."""
    return asked.messages[-1].text if asked.continue_final_message and asked.grammar is not None else ""


def _render(asked: Conversation, model: ChatModel) -> str:
    if begun := _begun_thought(asked, model):
        before = replace(asked, messages=asked.messages[:-1], add_generation_prompt=True, continue_final_message=False)
        start = model.chat_format.thinking[0]
        prompt = _render(before, model)
        return (prompt if prompt.rstrip().endswith(start.rstrip()) else prompt + start) + begun
    return model.render_chat(
        asked.messages,
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
        tools=asked.tools.listed,
        template_kwargs={**_thinking_kwargs(asked.thinking), **asked.template_kwargs},
    )


def _constrained(asked: Conversation, row: Format, prompt: str, card: ModelCard) -> tuple[Format, GrammarText | None]:
    """The format in which calls are parsed, and the grammar that the answer must match after its reasoning."""
    tools = asked.tools
    if not tools.definitions or row.calls is None:
        return row, asked.grammar
    if card.can_constrain_calls:
        return row, call_grammar(row, tools.offered, tools.choice, content=asked.grammar, opening=prompt)
    if tools.callable and (tools.mode == "required" or asked.grammar is not None):
        return replace(GENERIC, thinking=row.thinking), generic_calls(tools, asked.grammar)
    if tools.callable.keys() & tools.patterns.keys():
        message = "this backend can constrain the text of a custom tool only if a call is required"
        raise UnsupportedParameter(message, parameter="tools")
    return row, asked.grammar


def media_of(messages: Sequence[Message]) -> tuple[Media, ...]:
    """The files of a conversation, without duplicates.

    Raises:
        InvalidInput: there are too many files, or their total size is too large.
    """
    contents = [message.content for message in messages if isinstance(message.content, tuple)]
    return media_of_parts([part for content in contents for part in content])


def check_media(card: ModelCard, media: Sequence[Media]) -> None:
    """Raises UnsupportedParameter if the model does not take one of the files."""
    for file in media:
        if file.kind not in card.media:
            raise media_refused(file.kind, card.media_refusal)


def _thinking_kwargs(thinking: Thinking) -> dict[str, object]:
    is_on = False if thinking.effort == "none" else thinking.is_on
    variables: dict[str, object] = {} if is_on is None else dict.fromkeys(_THINKING_VARIABLES, is_on)
    if thinking.effort is not None:
        variables["reasoning_effort"] = thinking.effort
    return variables


def _span(thinking: Thinking, row: Format, prompt: str, *, has_tools: bool) -> ReasoningSpan:
    start, end = row.thinking
    ends = row.call_markers if has_tools and row.calls_end_thinking else ()
    return ReasoningSpan(
        starts_open=prompt.rstrip().endswith(start.rstrip()),
        start_text=start,
        end_text=end,
        implicit_ends=ends,
        budget=thinking.budget,
        closing_text=thinking.closing_text,
        can_be_ended=thinking.can_be_ended,
    )
