"""What a model can do, as a client is told before it asks: by its card, or by the chat template of its file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from stoker.engine.cards import ModelCard
from stoker.errors import TemplateError
from stoker.text.chat_formats.probe import find_format
from stoker.text.chat_template import ChatTemplate


class ToolFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The format in which a model calls tools."""

    name: str
    """Its row in the table of formats; `generic` = the system prompt describes the tools; `none` = no tools."""
    reason: str
    """Why this one."""
    writes_tools: bool
    """The chat template itself writes the definitions of tools."""
    writes_calls: bool
    """It writes the calls of earlier turns."""
    max_calls: int | None
    """Most calls in one answer; null = no limit."""
    can_think: bool
    """The model may reason before it answers."""
    can_disable_thinking: bool
    """The chat template knows how to switch that off."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a model can do."""

    names: Sequence[str]
    """In Ollama's words: `completion`, `insert`, `tools`, `thinking`, `embedding`."""
    tool_format: ToolFormat | None
    """None = it has no chat template, or a broken one."""


def card_capabilities(card: ModelCard) -> Capabilities:
    """What a loaded model can do. The first time, this runs its chat template, so it belongs on a thread of its own."""
    if not card.can_generate:
        return Capabilities(names=("embedding",), tool_format=None)
    plain = ("completion", "insert") if card.fill_tokens else ("completion",)
    return chat_capabilities(plain, card.chat_template, card.bos_token, card.eos_token, card.tool_format)


@lru_cache(maxsize=256)
def chat_capabilities(
    plain: tuple[str, ...], source: str | None, bos_token: str = "", eos_token: str = "", tool_format: str = ""
) -> Capabilities:
    """What a model with this chat template can do.

    Args:
        plain: what it can do without a template.
        source: the chat template; None = it has none, and was not made for conversations.
        bos_token: the text of the token, for the template.
        eos_token: likewise.
        tool_format: see `find_format`.
    """
    if source is None:
        return Capabilities(names=plain, tool_format=None)
    try:
        found = find_format(ChatTemplate(source, bos_token=bos_token, eos_token=eos_token), tool_format)
    except TemplateError:
        return Capabilities(names=plain, tool_format=None)
    has_calls = found.row.calls is not None
    names = [*plain, *(["tools"] if has_calls else []), *(["thinking"] if found.can_think else [])]
    return Capabilities(
        names=names,
        tool_format=ToolFormat(
            name=found.row.name if has_calls else "none",
            reason=found.reason,
            writes_tools=found.renders_tools,
            writes_calls=found.renders_calls,
            max_calls=found.row.max_calls,
            can_think=found.can_think,
            can_disable_thinking=found.can_disable_thinking,
        ),
    )
