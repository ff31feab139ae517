"""`RemoteEngine`: an engine replica anywhere in the cluster as a `Runtime`. Sends orders to it and takes its reports.

Each runtime connects only once. When the connection breaks, or is silent for too long, all its requests end with
`EngineCrashed`, and the fleet makes a new runtime for the replica. This module knows nothing of Ray.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, Protocol, Unpack, cast

from stoker.cluster.messages import Beat, Heard, Hello, Moved, Order, Report
from stoker.engine.card_template import CardTemplate
from stoker.engine.cards import ModelCard
from stoker.engine.config import AdapterSpec
from stoker.engine.door import Door
from stoker.engine.health import Health
from stoker.engine.inbox import InboxLimits
from stoker.engine.protocol import Accepted, Command, Failed, Output, Submit
from stoker.engine.question_messages import A, BlocksHeld, LookAtBlocks, Question
from stoker.engine.questions import Questions
from stoker.engine.requests import Requests
from stoker.errors import EngineCrashed, ModelNotLoaded
from stoker.runtime.cached_prefixes import CachedPrefixes
from stoker.runtime.routing import Beginning
from stoker.text.chat_formats.probe import ChatFormat
from stoker.text.messages import Message, RenderOptions
from stoker.text.volatile import VolatileHeaders

logger = logging.getLogger(__name__)

SILENCE_S = 12.0
"""Seconds of silence after which a replica counts as lost, even if its connection is open: it sends a `Beat` every
second."""
SIGN_EVERY_S = 5.0
"""Seconds after which a front without orders sends an empty list, so that the replica does not take it for gone."""
_MAX_ORDERS = 4096
"""Maximum number of orders that wait to be sent."""
_CAPACITY = 1_000_000
"""Limit of open requests on this side: in effect none, because the replica itself refuses what is too much."""
_LOST = "failed"
_STEPS = 8
"""Silence is counted in this many steps, so that a time in which this process is paused counts as one step at most."""


class LinkBroken(Exception):
    """The connection to a replica cannot be made, or is broken."""


class Link(Protocol):
    """The connection to one replica."""

    def reports(self) -> AsyncGenerator[list[Report], None]:
        """The replica's reports, from `Hello` on. Closing the stream ends the connection. Raises LinkBroken."""
        ...

    async def tell(self, orders: list[Order], on_part: Callable[[], None]) -> None:
        """Sends orders; returns when they have arrived. Raises LinkBroken.

        Args:
            orders: a list of orders.
            on_part: called when a part of them has arrived, however long the whole takes.
        """
        ...


class RemoteEngine:
    """The `Runtime` of one replica, from its connection until that is lost or closed. Belongs to one event loop.

    Args:
        link: the connection to the replica.
        volatile: lines to drop from the head of system prompts; None = none.
        silence_s: seconds of silence after which the replica counts as lost.
    """

    def __init__(self, link: Link, volatile: VolatileHeaders | None = None, *, silence_s: float = SILENCE_S) -> None:
        self._link = link
        self._volatile = volatile
        self._silence_s = silence_s
        self._requests = Requests(self._send, Door(capacity=_CAPACITY, parallel=1), InboxLimits(), None)
        self._questions = Questions(self._send)
        self._orders: list[Order] = []
        self._has_orders = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._steps_unheard = 0
        """Steps, see `_STEPS`, since the last frame of reports."""
        self._steps_told = 0
        """Steps, see `_STEPS`, since the last part of orders that are on their way has arrived."""
        self._is_telling = False
        self._hello: asyncio.Future[Hello] | None = None
        self._template: CardTemplate | None = None
        self._beat = Beat("starting")
        self._health: Health | None = None
        """What `health` returns; None = it has changed."""
        self._on_health: Callable[[], None] = lambda: None
        self._prefixes: tuple[CachedPrefixes, int] | None = None
        self.node = ""
        """The address of the replica's node, once it is connected."""
        self._kv_events = ""

    def note_in(self, prefixes: CachedPrefixes, number: int) -> None:
        """Has reports about the prefix cache noted there, as of the replica `number`. To be called before `start`."""
        self._prefixes = prefixes, number

    def listen(self, on_health: Callable[[], None]) -> None:
        """Sets the function that is called when `health` may have changed. To be called before `start`."""
        self._on_health = on_health

    @property
    def is_lost(self) -> bool:
        """Whether the connection is lost: this runtime never answers again."""
        return self._beat.state == _LOST

    @property
    def card(self) -> ModelCard:
        if self._hello is None or not self._hello.done() or self._hello.exception() is not None:
            raise ModelNotLoaded("the replica is not connected yet")
        return self._hello.result().card

    async def start(self) -> ModelCard:
        """Connects, and returns when the replica has sent the card of its model.

        Raises:
            EngineCrashed: the replica cannot be reached, or sent nothing in time.
        """
        if self._hello is None:
            self._hello = asyncio.get_running_loop().create_future()
            parts = (self._listen(), self._keep_telling(), self._watch())
            self._tasks = [asyncio.ensure_future(part) for part in parts]
            for task in self._tasks:
                task.add_done_callback(self._note_fault)
        hello = await asyncio.shield(self._hello)
        if self._template is None:
            self.node, self._kv_events, self._health = hello.node, hello.kv_events, None
            self._template = CardTemplate(hello.card, self._volatile)
        return hello.card

    def health(self) -> Health:
        if self._health is None:
            self._health = self._health_now()
        return self._health

    def _health_now(self) -> Health:
        beat = self._beat
        return Health(
            is_ready=beat.state == "ready",
            state=beat.state,
            num_restarts=beat.num_restarts,
            last_error=beat.last_error,
            heartbeat=beat.stats,
            node=self.node,
            kv_events=self._kv_events,
            num_others=beat.num_others,
            others_tokens=beat.others_tokens,
        )

    async def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        request = self._requests.open(submit)
        try:
            while True:
                event = await request.inbox.get()
                self._requests.note_read(request)
                yield event
                if isinstance(event, Output) and event.finish_reason is not None:
                    return
        finally:
            self._requests.close(request)

    @property
    def chat_format(self) -> ChatFormat:
        return self._known_template.chat_format

    def render_chat(self, messages: Sequence[Message], **options: Unpack[RenderOptions]) -> str:
        """See `CardTemplate.render`. Safe to call from any thread."""
        return self._known_template.render(messages, **options)

    async def ask(self, question: Question[A]) -> A:
        return await self._questions.ask(question)

    def begin_with(self, adapters: Sequence[AdapterSpec]) -> None:
        """Does nothing, because the adapters of a replica in a cluster are configured and never change."""

    async def close(self) -> None:
        self._end(ModelNotLoaded("the model was closed"), "closed")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def _known_template(self) -> CardTemplate:
        if self._template is None:
            raise ModelNotLoaded("the replica is not connected yet")
        return self._template

    def _send(self, command: Command) -> None:
        """Raises ModelNotLoaded if the replica is gone, or takes no orders."""
        if self._beat.state in (_LOST, "closed"):
            raise ModelNotLoaded("the replica is gone", retry_after_s=1.0)
        if len(self._orders) >= _MAX_ORDERS:
            raise ModelNotLoaded("the replica does not take orders", retry_after_s=1.0)
        self._orders.append(cast("Order", command))
        self._has_orders.set()

    async def _listen(self) -> None:
        reason = "ended"
        try:
            async with aclosing(self._link.reports()) as frames:
                async for frame in frames:
                    self._steps_unheard = 0
                    for report in frame:
                        self._take(report)
        except LinkBroken as error:
            reason = str(error)
        self._lose(reason)

    async def _watch(self) -> None:
        """Ends this runtime when the replica sends no reports, or takes no orders, for too long."""
        while max(self._steps_unheard, self._steps_told) < _STEPS:
            await asyncio.sleep(self._silence_s / _STEPS)
            self._steps_unheard += 1
            self._steps_told += self._is_telling
        did = "took no orders" if self._steps_told >= _STEPS else "said nothing"
        self._lose(f"{did} for {self._silence_s:g} s")

    def _take(self, report: Report) -> None:
        match report:
            case Output() | Accepted() | Failed():
                self._requests.on_event(report)
            case Beat():
                self._set_beat(report)
            case Heard() | BlocksHeld():
                self._note(report)
            case Moved():
                pass  # of the link
            case Hello():
                assert self._hello is not None
                self._hello.set_result(report)
                self._set_beat(Beat("ready"))
            case _:
                self._questions.on_answer(report)

    def _set_beat(self, beat: Beat) -> None:
        self._beat, self._health = beat, None
        self._on_health()

    def _note(self, report: Heard | BlocksHeld) -> None:
        if self._prefixes is None:
            return
        prefixes, number = self._prefixes
        if isinstance(report, Heard):
            beginning = Beginning(report.keys, report.num_tokens)
            prefixes.note_heard(number, beginning)
            prefixes.note_accepted(beginning, report.accepted)
        elif not prefixes.note_held(number, report):
            with suppress(ModelNotLoaded):  # the next report is refused as well, and asks again
                self._send(LookAtBlocks())

    async def _keep_telling(self) -> None:
        """Sends one list of orders at a time, which keeps their order; new orders gather meanwhile."""
        while True:
            try:
                async with asyncio.timeout(SIGN_EVERY_S):
                    await self._has_orders.wait()
            except TimeoutError:
                pass
            self._has_orders.clear()
            orders, self._orders = self._orders, []
            self._steps_told, self._is_telling = 0, True
            try:
                await self._link.tell(orders, self._note_part)
            except LinkBroken as error:
                return self._lose(str(error))
            self._steps_told, self._is_telling = 0, False

    def _note_part(self) -> None:
        self._steps_told = 0

    def _note_fault(self, task: asyncio.Task[None]) -> None:
        """Ends this runtime after a bug, such as a report of another version that cannot be read."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            logger.error("the connection to a replica on %s failed", self.node or "a node", exc_info=fault)
            self._lose(f"cannot be understood: {type(fault).__name__}")

    def _lose(self, reason: str) -> None:
        if self._beat.state not in (_LOST, "closed"):
            logger.info("a replica on %s is lost: it %s", self.node or "a node", reason)
            self._end(EngineCrashed(f"the replica {reason} while it worked on the request"), _LOST, reason)
            for task in self._tasks:
                if task is not asyncio.current_task():
                    task.cancel()

    def _end(self, error: Any, state: str, reason: str | None = None) -> None:
        self._set_beat(Beat(state, self._beat.num_restarts, reason))
        self._requests.end_all(error)
        self._questions.end_all(error)
        if self._hello is not None and not self._hello.done():
            self._hello.set_exception(error)
            self._hello.exception()  # waiters get the error; without waiters it needs no report
