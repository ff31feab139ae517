"""The asyncio interface to an engine that runs in a supervised child process. It makes no scheduling decisions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from stoker.engine.card_template import CardTemplate
from stoker.engine.cards import ModelCard
from stoker.engine.config import AdapterSpec, EngineConfig, SupervisionConfig
from stoker.engine.door import Door
from stoker.engine.health import Health
from stoker.engine.inbox import InboxLimits
from stoker.engine.protocol import Accepted, Command, Failed, Output, RowsWanted, Submit
from stoker.engine.question_messages import A, AdapterList, Answer, CountTokens, Question, as_answer_to
from stoker.engine.questions import Questions
from stoker.engine.request_media import RequestMedia
from stoker.engine.requests import PendingRequest, Requests
from stoker.engine.spare import ENGINE_COMMAND
from stoker.engine.supervisor import State, Supervisor
from stoker.errors import ModelNotLoaded, StokerError, Timeout
from stoker.text.messages import Message, RenderOptions
from stoker.text.volatile import VolatileHeaders

if TYPE_CHECKING:
    from stoker.media.encoder import MediaEncoder
    from stoker.text.chat_formats.probe import ChatFormat

_TIMEOUT_GRACE_S = 2.0
"""Seconds after a request's deadline until the client ends it, in case the engine does not."""


class _Switch:
    """Forwards the supervisor's events to requests, questions and media. See `Listener`."""

    def __init__(self, requests: Requests, questions: Questions, media: RequestMedia) -> None:
        self._requests = requests
        self._questions = questions
        self._media = media

    def on_ready(self, card: ModelCard) -> None:
        self._requests.on_ready(card)

    def on_event(self, event: Accepted | Output | Failed | RowsWanted | Answer) -> None:
        match event:
            case Output() | Accepted() | Failed():
                self._requests.on_event(event)
            case RowsWanted():
                self._media.on_wanted(event)
            case _:
                self._questions.on_answer(event)

    def on_down(self, reason: str) -> None:
        self._requests.on_down(reason)
        self._questions.on_down(reason)


class EngineClient:
    """A `Runtime` whose engine runs in a child process. Belongs to one event loop.

    If the child dies, requests that have output already end with `EngineCrashed`; the others are sent once more, to the
    restarted child. While no child is ready, new requests are refused.

    Args:
        config: the model and settings that the child loads.
        command: command line of a child that runs `serve_engine`.
        supervision: when a child counts as lost, and how it is started again.
        limits: how far a reader may lag.
        repeats: False = requests without output end with `EngineCrashed` too, and the caller sends them elsewhere.
        volatile: headers that are dropped from the start of system prompts; None = none.
        encoder: computes rows (embeddings) of images; replicas share it. None = the model takes text only.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        command: Sequence[str] = ENGINE_COMMAND,
        supervision: SupervisionConfig | None = None,
        limits: InboxLimits | None = None,
        repeats: bool = True,
        volatile: VolatileHeaders | None = None,
        encoder: MediaEncoder | None = None,
    ) -> None:
        supervision = supervision or SupervisionConfig()
        door = Door(capacity=config.parallel + config.max_queue, parallel=config.parallel)
        repeat_wait_s = supervision.restart_wait_s if repeats else None
        self._requests = Requests(self._send, door, limits or InboxLimits(), repeat_wait_s)
        self._questions = Questions(self._send)
        self._encoder = encoder
        self._names_projector = config.mmproj not in ("auto", "off")
        self._media = RequestMedia(encoder, self._send, self._requests.fail)
        switch = _Switch(self._requests, self._questions, self._media)
        self._supervisor = Supervisor(command, config, switch, supervision)
        self._volatile = volatile
        self._card: ModelCard | None = None
        self._template: CardTemplate | None = None

    @property
    def card(self) -> ModelCard:
        """The properties of the loaded model.

        Raises:
            ModelNotLoaded: the model has not been loaded yet.
        """
        if self._card is None:
            raise ModelNotLoaded("the model is still loading")
        return self._card

    @property
    def child_pid(self) -> int | None:
        """The process id of the current child; None = no child runs."""
        return self._supervisor.child_pid

    async def start(self) -> ModelCard:
        """Starts the child and returns when it has loaded the model. A later call returns the card at once.

        Raises:
            StokerError: the model cannot be loaded; nothing is left running.
        """
        if self._card is None:
            self._card = await self._supervisor.start()
            self._template = CardTemplate(self._card, self._volatile)
            await self._open_encoder(self._card)
        return self._card

    async def _open_encoder(self, card: ModelCard) -> None:
        """Checks a projector at once if the configuration names it; one found beside the model, on its first use."""
        if self._encoder is None:
            return
        self._encoder.open()
        if self._names_projector and card.media:
            try:
                await self._encoder.check(card.row_width)
            except StokerError:
                await self.close()
                raise

    async def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        """Runs one request. The first item is `Accepted`, the last one an `Output` with a `finish_reason`.

        Closing the generator, or cancelling the task that waits on it, aborts the request.

        Raises:
            StokerError: the request was refused (before `Accepted`) or failed (after it). `EngineCrashed`: the child
                died after the first token, or twice before it. `Cancelled`: the reader was far too slow.
        """
        try:
            submit = await self._media.placed(submit, self.card)
            async with aclosing(self._answered(submit)) as events:
                async for event in events:
                    yield event
        finally:
            self._media.forget(submit.request_id)

    async def _answered(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        request = self._requests.open(submit)
        try:
            while True:
                event = await (request.inbox.get() if request.deadline is None else _in_time(request, request.deadline))
                self._requests.note_read(request)
                yield event
                if isinstance(event, Output) and event.finish_reason is not None:
                    return
        finally:
            self._requests.close(request)

    @property
    def _known_template(self) -> CardTemplate:
        if self._template is None:
            raise ModelNotLoaded("the model is still loading")
        return self._template

    @property
    def chat_format(self) -> ChatFormat:
        return self._known_template.chat_format

    def render_chat(self, messages: Sequence[Message], **options: Unpack[RenderOptions]) -> str:
        """See `CardTemplate.render`. Safe to call from any thread."""
        return self._known_template.render(messages, **options)

    async def ask(self, question: Question[A]) -> A:
        """Asks the engine a question and returns its answer. Cancellation aborts an `Embed`. A restarted child loads
        the adapters of the last `AdapterList` answer.

        Raises:
            StokerError: the question was refused, or the engine cannot answer; see `Questions.ask`.
        """
        asked: Question[Any] = question
        if isinstance(asked, CountTokens):
            asked = await self._media.counted(asked, self.card)
        answer = as_answer_to(question, await self._questions.ask(asked))
        if isinstance(answer, AdapterList):
            self._note_adapters(answer)
        return answer

    def begin_with(self, adapters: Sequence[AdapterSpec]) -> None:
        """Sets the LoRA adapters that a child loads at its start, in place of those in the configuration. A child that
        is still loading gets them before it is ready; a child that is ready keeps its own.
        """
        self._supervisor.remember_adapters(adapters)

    def health(self) -> Health:
        """The state of the engine, as far as this process knows it now. Does not wait."""
        supervisor = self._supervisor
        return Health(
            is_ready=supervisor.state is State.READY,
            state=supervisor.state.value,
            num_restarts=supervisor.num_restarts,
            last_error=supervisor.last_error,
            heartbeat=supervisor.heartbeat,
            loaded_part=supervisor.loaded_part,
            encoder=None if self._encoder is None else self._encoder.load(),
        )

    async def close(self) -> None:
        """Ends all requests and questions with `ModelNotLoaded` and stops the child. Calling it twice is allowed."""
        self._requests.end_all(ModelNotLoaded("the model was closed"))
        self._questions.end_all(ModelNotLoaded("the model was closed"))
        await self._supervisor.close()
        if self._encoder is not None and self._card is not None:
            encoder, self._encoder = self._encoder, None
            await encoder.close()

    def _note_adapters(self, loaded: AdapterList) -> None:
        self._supervisor.remember_adapters([card.as_spec() for card in loaded.adapters])
        if self._card is not None:
            self._card = msgspec.structs.replace(self._card, adapters=loaded.adapters)

    def _send(self, command: Command) -> None:
        self._supervisor.send(command)


async def _in_time(request: PendingRequest, deadline: float) -> Accepted | Output:
    try:
        async with asyncio.timeout_at(deadline + _TIMEOUT_GRACE_S):
            return await request.inbox.get()
    except TimeoutError as error:
        timeout_s = request.submit.timeout_s
        raise Timeout(f"the request was not finished within {timeout_s:g} s", timeout_s=timeout_s) from error
