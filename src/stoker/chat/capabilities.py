"""The capabilities of a model, which clients can query before a request; derived from its card and chat template."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from stoker.core.embedding import Pooling
from stoker.core.media import MediaKind
from stoker.engine.cards import ModelCard
from stoker.errors import TemplateError
from stoker.text.chat_formats.probe import find_format
from stoker.text.chat_template import ChatTemplate

_MEDIA_WORDS: dict[MediaKind, str] = {"image": "vision", "audio": "audio"}


class ToolFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The format in which a model calls tools."""

    name: str
    """Its row in the table of formats; `generic` = the system prompt describes the tools; `none` = no tools."""
    reason: str
    """Why this format was chosen."""
    writes_tools: bool
    """The chat template itself writes the definitions of tools."""
    writes_calls: bool
    """The chat template writes the calls of earlier turns."""
    max_calls: int | None
    """Maximum number of calls in one answer; null = no limit."""
    can_think: bool
    """The model may reason before it answers."""
    can_disable_thinking: bool
    """The chat template has a variable that turns reasoning off."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The capabilities of a model."""

    names: Sequence[str]
    """In Ollama's words: `completion`, `insert`, `vision`, `audio`, `tools`, `thinking`, `embedding`; besides, `rerank`
    and `transcription`."""
    tool_format: ToolFormat | None
    """None = the model has no chat template, or a broken one."""


def card_capabilities(card: ModelCard) -> Capabilities:
    """The capabilities of a loaded model. The first call runs its chat template, so it belongs on a separate thread."""
    if card.transcription is not None:
        return Capabilities(names=("transcription",), tool_format=None)
    if not card.can_generate:
        is_ranker = card.embedding is not None and card.embedding.pooling == Pooling.RANK.value
        return Capabilities(names=("rerank" if is_ranker else "embedding",), tool_format=None)
    fills = ("insert",) if card.fill_tokens else ()
    plain = ("completion", *fills, *(_MEDIA_WORDS[kind] for kind in card.media))
    return chat_capabilities(plain, card.chat_template, card.bos_token, card.eos_token, card.tool_format)


@lru_cache(maxsize=256)
def chat_capabilities(
    plain: tuple[str, ...], source: str | None, bos_token: str = "", eos_token: str = "", tool_format: str = ""
) -> Capabilities:
    """The capabilities of a model with this chat template.

    Args:
        plain: names of the capabilities that need no chat template.
        source: the chat template; None = the model has none, and was not trained for conversations.
        bos_token: text of the beginning-of-sequence token, for the template.
        eos_token: text of the end-of-sequence token, for the template.
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
