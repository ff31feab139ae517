"""A loaded model's chat template, for whoever has its card."""

from __future__ import annotations

from functools import cached_property

from stoker.engine.cards import ModelCard
from stoker.text.chat_template import ChatTemplate


class CardTemplate:
    """Compiled at the first chat: a model whose template is broken still completes texts. For any thread."""

    def __init__(self, card: ModelCard) -> None:
        self._card = card

    @cached_property
    def compiled(self) -> ChatTemplate:
        """The template.

        Raises:
            TemplateError: the source does not compile.
        """
        card = self._card
        return ChatTemplate(card.chat_template, bos_token=card.bos_token, eos_token=card.eos_token)
