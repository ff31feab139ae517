"""A model in an engine process of our own; conversations are rendered on this side of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence

from stoker.engine.client import EngineClient
from stoker.engine.protocol import Accepted, ModelCard, Output, Submit
from stoker.errors import ModelNotLoaded
from stoker.runtime.base import Health
from stoker.text.chat_template import ChatTemplate
from stoker.text.messages import Message


class LocalRuntime:
    """The `Runtime` over one `EngineClient`, which it owns."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._card: ModelCard | None = None
        self._template: ChatTemplate | None = None

    @property
    def card(self) -> ModelCard:
        if self._card is None:
            raise ModelNotLoaded("the model is still loading")
        return self._card

    async def start(self) -> ModelCard:
        if self._card is None:
            self._card = await self._client.start()
        return self._card

    def health(self) -> Health:
        engine = self._client.health()
        return Health(
            is_ready=engine.is_ready,
            state=engine.state.value,
            num_restarts=engine.num_restarts,
            last_error=engine.last_error,
            heartbeat=engine.heartbeat,
        )

    def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        return self._client.generate(submit)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> str:
        variables: dict[str, object] = dict(template_kwargs or {})
        return self._chat_template().render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **variables,  # pyright: ignore[reportArgumentType]  # the server keeps the named ones out
        )

    async def close(self) -> None:
        await self._client.close()

    def _chat_template(self) -> ChatTemplate:
        """Compiled at the first chat: a model whose template is broken still serves completions."""
        if self._template is None:
            card = self.card
            self._template = ChatTemplate(card.chat_template, bos_token=card.bos_token, eos_token=card.eos_token)
        return self._template
