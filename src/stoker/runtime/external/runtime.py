"""`ExternalRuntime`: a model in an external server process, such as llama-server or vLLM, as a `Runtime`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack

from stoker.engine.card_template import CardTemplate
from stoker.engine.cards import ModelCard
from stoker.engine.closing import aclosing_on_error
from stoker.engine.config import AdapterSpec, EngineConfig, SupervisionConfig
from stoker.engine.door import Door
from stoker.engine.health import Health
from stoker.engine.protocol import Accepted, Output, Submit
from stoker.engine.question_messages import (
    A,
    AdapterList,
    Answer,
    ChangeAdapters,
    CountTokens,
    Embed,
    Question,
    TokenCount,
    Tokenize,
    as_answer_to,
)
from stoker.engine.stats import EngineStats
from stoker.engine.supervisor import State
from stoker.errors import BackendError, InvalidInput, ModelNotLoaded, StokerError, Timeout, UnsupportedParameter
from stoker.runtime.external.answers import Answers, Asked
from stoker.runtime.external.client import BrokenOff, ServerClient
from stoker.runtime.external.incarnation import Incarnation
from stoker.runtime.external.program import Program
from stoker.runtime.external.slot_queue import SlotQueue
from stoker.runtime.external.supervisor import ServerSupervisor
from stoker.text.messages import Message, RenderOptions
from stoker.text.volatile import VolatileHeaders

if TYPE_CHECKING:
    from stoker.text.chat_formats.probe import ChatFormat

T = TypeVar("T")

_NO_WAIT_S = 1e-3


class ServedFile(Protocol):
    """One model in one kind of external server: all that differs between the kinds. Belongs to one event loop."""

    @property
    def answers_at(self) -> str:
        """The HTTP path of the server's completions."""
        ...

    @property
    def pool_tokens(self) -> int:
        """Maximum number of tokens that all running requests together may hold. Known once `prepare` has returned."""
        ...

    @property
    def num_retained(self) -> int:
        """Tokens of ended requests that the server keeps cached, as far as it reports them."""
        ...

    def prepare(self) -> Program:
        """The program to start. Reads files and may run programs, and is therefore called on a thread.

        Raises:
            StokerError: the model or the program is missing, or does not support the configuration.
        """
        ...

    async def learn(self, client: Callable[[], ServerClient]) -> ModelCard:
        """The model's card, with what only a running server knows. Called once.

        Args:
            client: returns the client of the present server.

        Raises:
            BrokenOff: the server is gone.
            StokerError: the server answered with an error.
        """
        ...

    async def look(self, client: ServerClient) -> None:
        """Reads a server's state. Called about once per heartbeat, after the server has answered a health check."""
        ...

    async def admit(self, submit: Submit) -> Asked:
        """Tokenizes and checks a request.

        Raises:
            StokerError: the server cannot honor the request.
        """
        ...

    def check(self, question: Question[Any]) -> None:
        """Refuses a question that the server cannot answer, before the question waits for its turn.

        Raises:
            StokerError: the question cannot be answered.
        """
        ...

    async def answer(self, question: Question[Any]) -> Answer:
        """The answer to a question that has passed `check`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """What is known once the first server answers."""

    card: ModelCard
    template: CardTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class _Serving:
    """The parts that exist once `ServedFile.prepare` has returned the program."""

    program: Program
    supervisor: ServerSupervisor
    queue: SlotQueue
    answers: Answers


class ExternalRuntime:
    """The `Runtime` of one model in a server process, which it starts, restarts and owns.

    Args:
        served: the model, with what is specific to the kind of server.
        engine: the resources that the server may use.
        supervision: when a server counts as lost, and how it is restarted.
        volatile: lines that are dropped from the head of system prompts; None = none.
        repeats: repeat requests without output on a new server when the server dies. False = they fail at once, and
            the caller repeats them elsewhere.
    """

    def __init__(
        self,
        served: ServedFile,
        engine: EngineConfig,
        *,
        supervision: SupervisionConfig | None = None,
        volatile: VolatileHeaders | None = None,
        repeats: bool = True,
    ) -> None:
        self._served = served
        self._engine = engine
        times = supervision or SupervisionConfig()
        self._times = times if repeats else replace(times, restart_wait_s=_NO_WAIT_S)
        self._volatile = volatile
        self._door = Door(capacity=engine.parallel + engine.max_queue, parallel=engine.parallel)
        self._inside: set[str] = set()
        """Ids of all requests and embeddings, running and waiting."""
        self._embedding_turns = asyncio.Semaphore(engine.parallel)
        self._serving: _Serving | None = None
        self._loaded: _Loaded | None = None
        self._load_error: StokerError | None = None
        self._is_closed = False

    @property
    def card(self) -> ModelCard:
        return self._known().card

    @property
    def server_pid(self) -> int | None:
        """The process id of the present server."""
        return None if self._serving is None else self._serving.supervisor.pid

    async def start(self) -> ModelCard:
        if self._loaded is None:
            try:
                self._loaded = await self._load()
            except StokerError as error:
                self._load_error = error
                raise
        return self._loaded.card

    def health(self) -> Health:
        if self._serving is None:
            failed = State.FAILED if self._load_error is not None else State.STARTING
            state = State.CLOSED if self._is_closed else failed
            return Health(is_ready=False, state=state.value, last_error=_message(self._load_error))
        supervisor = self._serving.supervisor
        state = supervisor.state
        if state is State.READY and self._loaded is None:
            state = State.STARTING
        return Health(
            is_ready=state is State.READY,
            state=state.value,
            num_restarts=supervisor.num_restarts,
            last_error=supervisor.last_error,
            heartbeat=self._heartbeat(self._serving) if self._loaded is not None else None,
        )

    async def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        self._known()
        serving = self._ready()
        with self._counted(submit.request_id):
            asked = await self._asking(lambda: self._served.admit(submit))
            serving.queue.check(asked.request)
            yield Accepted(submit.request_id, asked.num_prompt)
            async with aclosing(serving.answers.outputs(asked)) as outputs:
                async for output in outputs:
                    yield output

    @property
    def chat_format(self) -> ChatFormat:
        return self._known().template.chat_format

    def render_chat(self, messages: Sequence[Message], **options: Unpack[RenderOptions]) -> str:
        return self._known().template.render(messages, **options)

    async def ask(self, question: Question[A]) -> A:
        return as_answer_to(question, await self._answer(question))

    async def _answer(self, question: Question[Any]) -> Answer:
        self._known()
        match question:
            case CountTokens(prompt=str(prompt), media=()):
                return TokenCount(question.question_id, len((await self.ask(Tokenize(prompt))).token_ids))
            case CountTokens():
                name = self._ready().program.name
                message = f"{name} counts the rows of images and recordings only when it computes them"
                raise UnsupportedParameter(message, parameter="messages")
            case ChangeAdapters(is_empty=True):
                return AdapterList(question.question_id, list(self._known().card.adapters))
            case ChangeAdapters():
                name = self._ready().program.name
                message = (
                    f"the adapters of {name} do not change while it runs: serve the model without --runtime {name}"
                )
                raise UnsupportedParameter(message, parameter="lora")
            case Embed():
                return await self._embed(question)
            case _:
                self._served.check(question)
                return await self._asking(lambda: self._served.answer(question))

    async def _embed(self, embed: Embed) -> Answer:
        self._ready()
        self._served.check(embed)
        with self._counted(f"embed-{id(embed)}"):
            try:
                async with asyncio.timeout(embed.timeout_s), self._embedding_turns:
                    return await self._asking(lambda: self._served.answer(embed))
            except TimeoutError as error:
                message = f"the request was not finished within {embed.timeout_s:g} s"
                raise Timeout(message, timeout_s=embed.timeout_s) from error

    def begin_with(self, adapters: Sequence[AdapterSpec]) -> None:
        assert not adapters, "it never had any"

    async def close(self) -> None:
        self._is_closed = True
        if self._serving is not None:
            await self._serving.supervisor.close()

    async def _load(self) -> _Loaded:
        program = await asyncio.to_thread(self._served.prepare)
        if self._is_closed:
            raise ModelNotLoaded("the model was closed while it was loaded")
        self._serving = self._set_up(program)
        await self._serving.supervisor.start()
        async with aclosing_on_error(self._serving.supervisor.close):
            card = await self._asking(lambda: self._served.learn(self._client))
            return _Loaded(card=card, template=CardTemplate(card, self._volatile))

    def _set_up(self, program: Program) -> _Serving:
        queue = SlotQueue(
            parallel=self._engine.parallel,
            pool_tokens=self._served.pool_tokens,
            max_queue_tokens=self._engine.max_queue_tokens,
            door=self._door,
        )
        supervisor = ServerSupervisor(program, self._look, self._stalled_s, self._times)
        answers = Answers(supervisor, queue, name=program.name, path=self._served.answers_at)
        return _Serving(program=program, supervisor=supervisor, queue=queue, answers=answers)

    async def _look(self, incarnation: Incarnation) -> None:
        await self._served.look(incarnation.client)

    def _stalled_s(self) -> float:
        return 0.0 if self._serving is None else self._serving.answers.stalled_s()

    def _heartbeat(self, serving: _Serving) -> EngineStats:
        answers = serving.answers
        return EngineStats(
            num_steps=0,  # known only to the server
            num_running=serving.queue.num_running,
            num_waiting=serving.queue.num_waiting,
            kv_used=sum(answers.held.values()),
            kv_retained=self._served.num_retained,
            kv_capacity=self._known().card.kv_tokens,
            stalled_s=answers.stalled_s(),
            prompt_tokens=answers.prompt_tokens,
            cached_tokens=answers.cached_tokens,
            pool_hit_tokens=answers.cached_tokens,
        )

    def _known(self) -> _Loaded:
        if self._loaded is None:
            raise ModelNotLoaded("the model is still loading")
        return self._loaded

    def _ready(self) -> _Serving:
        """Raises ModelNotLoaded if no server answers now."""
        if self._serving is None:
            raise ModelNotLoaded("the model is still loading")
        _ = self._serving.supervisor.present
        return self._serving

    def _client(self) -> ServerClient:
        return self._ready().supervisor.present.client

    @contextmanager
    def _counted(self, request_id: str) -> Generator[None]:
        """Counts a request while the block runs; refuses it if there are too many, or if its id is in use."""
        if request_id in self._inside:
            raise InvalidInput(f"request id {request_id!r} is already in use", parameter="request_id")
        self._door.check(len(self._inside))
        self._inside.add(request_id)
        try:
            yield
        finally:
            self._inside.discard(request_id)

    async def _asking(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The result of `ask`; if the server dies meanwhile, asks once more on the restarted server.

        Raises:
            EngineCrashed: the restarted server died, too, or did not answer in time.
            ModelNotLoaded: no server runs.
        """
        serving = self._ready()
        supervisor = serving.supervisor
        for is_last in (False, True):
            incarnation = supervisor.present
            try:
                return await ask()
            except BrokenOff as error:
                reason = await supervisor.death_of(incarnation)
                if reason is None:
                    raise BackendError(f"{serving.program.name} broke off before it answered: {error}") from error
                if is_last or supervisor.closed_error() is not None:
                    raise supervisor.closed_error() or supervisor.crash(reason) from error
            await supervisor.successor(reason)
        raise AssertionError("the last attempt returns or raises")


def _message(error: StokerError | None) -> str | None:
    return None if error is None else error.message
