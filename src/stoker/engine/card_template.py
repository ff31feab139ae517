"""Renders conversations to prompts with the chat template of a loaded model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack

from stoker.engine.cards import ModelCard
from stoker.errors import InvalidInput, TemplateError
from stoker.lazy import lazy_module
from stoker.text.messages import Json, Message, RenderOptions
from stoker.text.volatile import VolatileHeaders

if TYPE_CHECKING:
    from stoker.text import chat_template
    from stoker.text.chat_formats import alternation, conversation, probe
    from stoker.text.chat_formats.probe import ChatFormat
    from stoker.text.chat_template import ChatTemplate
else:
    # Imported on first use, so that an engine can start to load before its parent imports the renderers.
    chat_template = lazy_module("stoker.text.chat_template")
    alternation = lazy_module("stoker.text.chat_formats.alternation")
    conversation = lazy_module("stoker.text.chat_formats.conversation")
    probe = lazy_module("stoker.text.chat_formats.probe")

_USUAL_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_SAY_SOMETHING = frozenset({"system", "developer", "user"})
"""Roles whose messages must have content."""


def import_renderers() -> None:
    """Imports the modules that `CardTemplate` renders with. For a thread, while the program waits for a model."""
    import_module("stoker.text.chat_formats.conversation")


class CardTemplate:
    """A model's chat template, for any thread. Compiled at the first chat: a broken one does not affect completions.

    Args:
        card: the card of the loaded model.
        volatile: headers that are dropped from the start of system prompts; None = none.
    """

    def __init__(self, card: ModelCard, volatile: VolatileHeaders | None = None) -> None:
        self._card = card
        self._volatile = volatile or VolatileHeaders(())

    def render(self, messages: Sequence[Message], **options: Unpack[RenderOptions]) -> str:
        """The prompt text of a conversation.

        Args:
            messages: the conversation, oldest first; not empty.
            options: see `RenderOptions`.

        Raises:
            InvalidInput: a message has no content, or an unusual role that the template does not name.
            TemplateError: the template does not compile, or it refused the messages.
        """
        self._check(messages)
        messages = self._with_all_instructions(self._with_system(messages))
        given: Sequence[Mapping[str, Json]] | None = None
        tools = options.get("tools", ())
        if tools or any(message.tool_calls or message.role == "tool" for message in messages):
            messages, given = conversation.prepared(messages, tools, self.chat_format)
        variables: Mapping[str, Any] = options.get("template_kwargs") or {}  # the server keeps the named ones out
        render = partial(
            self._compiled.render,
            add_generation_prompt=options.get("add_generation_prompt", True),
            continue_final_message=options.get("continue_final_message", False),
            **variables,
        )
        try:
            return render(self._volatile.drop(messages), tools=given)
        except TemplateError as error:
            return self._retry(render, messages, given, error)

    def _retry(
        self,
        render: Callable[..., str],
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Json]] | None,
        error: TemplateError,
    ) -> str:
        """Retries with plainer forms of a conversation that the template refused, such as alternating turns."""
        plainer, completed = conversation.plainer(messages, tools, takes_system=self.chat_format.takes_system)
        alternating = alternation.alternating(plainer)
        tried = [([*messages], tools)]
        for form in (plainer, alternating, alternation.without_gaps(alternating)):
            if (form, completed) in tried:
                continue
            tried.append((form, completed))
            with suppress(TemplateError):
                return render(self._volatile.drop(form), tools=completed)
        raise error

    def _check(self, messages: Sequence[Message]) -> None:
        """Checks roles and contents: most templates write any role unchanged, so a typo would change the prompt."""
        for index, message in enumerate(messages):
            if not (message.role in _USUAL_ROLES or self._names_role(message.role)):
                usual = ", ".join(sorted(_USUAL_ROLES))
                problem = f"must be one of {usual}, or a role of the chat template, not {message.role[:40]!r}"
                raise _invalid(f"messages[{index}].role", problem)
            if message.content is None and message.role in _SAY_SOMETHING:
                raise _invalid(f"messages[{index}].content", "is missing")

    def _names_role(self, role: str) -> bool:
        return f'"{role}"' in self._source or f"'{role}'" in self._source

    @cached_property
    def _source(self) -> str:
        return self._card.chat_template or ""

    def _with_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Adds the card's system prompt to a conversation without a system prompt."""
        if not self._card.system or any(message.role in alternation.SYSTEM_ROLES for message in messages):
            return messages
        return [Message(role="system", content=self._card.system), *messages]

    def _with_all_instructions(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Moves instructions to where the template writes them: many silently drop all but a first system message."""
        if any(message.role == "developer" for message in messages) and not self.chat_format.takes_developer:
            messages = alternation.by_system(messages)
        if alternation.has_more_systems(messages) and not self.chat_format.takes_more_systems:
            messages = alternation.with_one_system(messages)
        return messages

    @cached_property
    def chat_format(self) -> ChatFormat:
        """The format in which the model reasons and calls tools.

        Raises:
            TemplateError: the template does not compile.
        """
        return probe.find_format(self._compiled, self._card.tool_format)

    @cached_property
    def _compiled(self) -> ChatTemplate:
        card = self._card
        return chat_template.ChatTemplate(
            card.chat_template, bos_token=card.bos_token, eos_token=card.eos_token, image_text=card.image_text
        )


def _invalid(where: str, problem: str) -> InvalidInput:
    return InvalidInput(f"`{where}` {problem}", parameter=where)
