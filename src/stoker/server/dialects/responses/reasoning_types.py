"""The JSON types of the reasoning in a response, and of the summary of a conversation."""

from __future__ import annotations

import msgspec


class SummaryText(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    type: str = "summary_text"


class ReasoningText(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    type: str = "reasoning_text"


class OutputReasoning(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    """The model's reasoning before the answer."""

    id: str
    status: str
    content: list[ReasoningText]
    """The reasoning, unless the request asks for a summary."""
    summary: list[SummaryText] = []
    """The reasoning, if the request asks for a summary: the whole text, because nothing is summarized."""
    encrypted_content: str | None = None
    """The reasoning as one opaque text that the client can send back unchanged, if `include` requests it."""

    @property
    def text(self) -> str:
        """The reasoning."""
        return "".join(part.text for part in (*self.content, *self.summary))


class Compaction(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="compaction"):
    """A summary that stands for a part of the conversation."""

    id: str
    encrypted_content: str
    """The summary as one opaque text, which is not encrypted."""
