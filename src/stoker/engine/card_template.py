"""Conversations to prompts, by the chat template of a loaded model's card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from stoker.engine.cards import ModelCard
from stoker.text.chat_formats.conversation import prepared
from stoker.text.chat_formats.probe import ChatFormat, find_format
from stoker.text.chat_template import ChatTemplate
from stoker.text.messages import Json, Message
from stoker.text.volatile import VolatileHeaders


class CardTemplate:
    """Compiled at the first chat: a model whose template is broken still completes texts. For any thread.

    Args:
        card: of the loaded model.
        volatile: what is dropped from the head of system prompts; None = nothing.
    """

    def __init__(self, card: ModelCard, volatile: VolatileHeaders | None = None) -> None:
        self._card = card
        self._volatile = volatile or VolatileHeaders(())

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Json]] = (),
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt text of a conversation.

        Args:
            messages: the conversation, oldest first; not empty.
            add_generation_prompt: open the assistant's turn at the end.
            continue_final_message: leave the last message open, so that the answer continues it.
            tools: definitions in OpenAI's shape that the model may call.
            variables: further ones for the template (such as `enable_thinking`).

        Raises:
            TemplateError: the source does not compile, or the template refused the messages.
        """
        given: Sequence[Mapping[str, Json]] | None = None
        if tools or any(message.tool_calls or message.role == "tool" for message in messages):
            messages, given = prepared(messages, tools, self.chat_format)
        return self._compiled.render(
            self._volatile.drop(messages),
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=given,
            **(variables or {}),  # pyright: ignore[reportArgumentType]  # the server keeps the named ones out
        )

    @cached_property
    def chat_format(self) -> ChatFormat:
        """How the model reasons and calls tools.

        Raises:
            TemplateError: the source does not compile.
        """
        return find_format(self._compiled)

    @cached_property
    def _compiled(self) -> ChatTemplate:
        card = self._card
        return ChatTemplate(card.chat_template, bos_token=card.bos_token, eos_token=card.eos_token)
