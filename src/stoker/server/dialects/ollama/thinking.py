"""Finds the values of `think` that a model supports, for `/api/show`, by running its chat template."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from stoker.chat.capabilities import ToolFormat
from stoker.errors import TemplateError
from stoker.server.dialects.ollama.types import ThinkingReply
from stoker.text.chat_template import ChatTemplate
from stoker.text.messages import Message

_LEVELS = ("low", "medium", "high")
_QUESTION = (Message(role="user", content="probe-question"),)
_MAX_KNOWN = 256


def thinking_values(source: str | None, found: ToolFormat | None) -> ThinkingReply | None:
    """The supported values of `think`, and the default for requests without it.

    Args:
        source: the model's chat template.
        found: the format of the model's tool calls and reasoning, as detected from the template.

    Returns:
        None if the model does not reason.
    """
    if source is None or found is None or not found.can_think:
        return None
    levels = {level: _prompt(source, "reasoning_effort", level) for level in _LEVELS}
    if len(set(levels.values())) == len(_LEVELS) and all(levels.values()):
        usual = _prompt(source)
        default = next((level for level, prompt in levels.items() if prompt == usual), True)
        return ThinkingReply(values=_LEVELS, default=default)
    if not found.can_disable_thinking:
        return ThinkingReply(values=(True,), default=True)
    is_on = _prompt(source) != _prompt(source, "enable_thinking", False)
    return ThinkingReply(values=(False, True), default=is_on)


@lru_cache(maxsize=_MAX_KNOWN)
def _prompt(source: str, name: str = "", value: str | bool = "") -> str:
    """The prompt of a test question with a template variable set; empty if the template refuses the value.

    A flag is also set as `thinking`, another name of `enable_thinking`.
    """
    variables: dict[str, Any] = {name: value} if name else {}
    if isinstance(value, bool):
        variables["thinking"] = value
    try:
        return ChatTemplate(source).render(_QUESTION, **variables)
    except TemplateError:
        return ""
