"""The session of one front at one engine replica: runs the front's orders on the runtime, and streams reports back.

A front is a process that serves HTTP. A session ends with the stream of its reports, or when its front is silent for
too long; its open requests are then aborted. It knows nothing of Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from contextlib import aclosing
from typing import Any

import msgspec

from stoker.cluster.messages import Beat, Heard, Hello, Moved, Order, Report, Ticket, decode_orders
from stoker.core.blocks import BLOCK_ENTRIES
from stoker.engine import inbox
from stoker.engine.blocks_held import StoredBlocks
from stoker.engine.protocol import Abort, Accepted, Failed, Output, Pause, Resume, Submit
from stoker.engine.question_messages import (
    BlocksHeld,
    ChangeAdapters,
    EraseSlots,
    LookAtBlocks,
    Question,
    RestoreSlot,
    SaveSlot,
    Unanswered,
)
from stoker.errors import StokerError, UnsupportedParameter
from stoker.runtime.base import Runtime
from stoker.runtime.block_follower import BlockFollower
from stoker.runtime.replica import Work
from stoker.runtime.replica_request import beginning_of_submit
from stoker.runtime.routing import Beginning, size_of

BEAT_S = 1.0
"""Seconds between two heartbeats of a replica."""
PATIENCE_S = 20.0
"""Seconds of silence after which a front counts as gone."""
MAX_UNTAKEN_BYTES = 64 * 2**10
"""Size of reports of requests, roughly, from which on these take no more events until the connection takes reports."""
MAX_UNREAD = 100_000
"""Number of unread block changes from which on a front gets a list of all blocks instead."""


class Session:
    """One front's session at one replica, until the connection ends. Belongs to one event loop.

    Args:
        runtime: the replica's runtime, already started.
        node: the address of the replica's node.
        others: returns the sessions of other fronts at the same replica.
        blocks: follows the KV blocks that the replica holds; None = the front is not told of blocks.
        kv_events: the endpoint at which the replica publishes KV events; empty = none.
        ticket: how the front connects directly; None = not at all.
    """

    def __init__(
        self,
        runtime: Runtime,
        node: str,
        others: Callable[[], Iterable[Session]] = lambda: (),
        blocks: BlockFollower | None = None,
        kv_events: str = "",
        ticket: Ticket | None = None,
    ) -> None:
        self._runtime = runtime
        self._others = others
        self._blocks = blocks
        self._num_blocks_unread = 0
        """Block changes in reports that the front has not taken. From `MAX_UNREAD` on, it gets all blocks instead."""
        self._reports: list[Report] = [Hello(runtime.card, node, kv_events, ticket)]
        self._begun = bytearray()
        """The parts of a list of orders that is not complete yet."""
        self._has_news = asyncio.Event()
        self._num_untaken_bytes = 0
        self._has_room = asyncio.Event()
        """Is set while less than `MAX_UNTAKEN_BYTES` wait for the connection."""
        self._has_room.set()
        self._work: dict[str, asyncio.Task[None]] = {}
        self._costs: dict[str, Work] = {}
        """Remaining work of each request."""
        self._resumed: dict[str, asyncio.Event] = {}
        """For each request: an event that is set while the request is not paused."""
        self._is_closed = False
        self._is_beat_due = False
        self._num_unheard = 0
        """Heartbeats since the front's last message. Seconds would count time in which this process is paused."""

    @property
    def num_open(self) -> int:
        """Requests and questions that have not ended."""
        return len(self._work)

    @property
    def num_tokens(self) -> int:
        """Estimate of the tokens that the replica has still to compute for this front's requests."""
        return sum(cost.num_tokens for cost in self._costs.values())

    def obey(self, orders: list[Order]) -> None:
        """Begins to carry out the front's orders, in order, without waiting. An empty list is a heartbeat."""
        self._num_unheard = 0
        for order in () if self._is_closed else orders:
            match order:
                case Submit():
                    self._begin(order.request_id, self._generate(order, self._work.get(order.request_id)))
                case Abort():
                    self._abort(order.request_id)
                case Pause():
                    if (resumed := self._resumed.get(order.request_id)) is not None:
                        resumed.clear()
                case Resume():
                    if (resumed := self._resumed.get(order.request_id)) is not None:
                        resumed.set()
                case LookAtBlocks():
                    self._num_blocks_unread = MAX_UNREAD
                    self._has_news.set()
                case _:
                    self._begin(order.question_id, self._answer(order))

    def take(self, part: bytes, *, has_more: bool) -> None:
        """Takes a part of an encoded list of orders, which it obeys when it is complete. Each part is a heartbeat."""
        self._begun += part
        if has_more:
            self.obey([])
        else:
            orders, self._begun = decode_orders(self._begun), bytearray()
            self.obey(orders)

    def move(self) -> None:
        """Tells the front that the frame with this report is the last one through Ray."""
        self._tell(Moved())

    def hear(self, heard: Heard) -> None:
        """Tells the front that another front has sent a prompt here."""
        self._tell(heard)

    def note_others(self) -> None:
        """Tells the front that the load by other fronts has changed: else all fronts would choose the same replica."""
        self._is_beat_due = True
        self._has_news.set()

    async def frames(self) -> AsyncGenerator[list[Report], None]:
        """Lists of reports for the front, with at least a `Beat` every second. Ends when the front is gone."""
        beating = asyncio.ensure_future(self._keep_beating())
        if self._blocks is not None:
            self._blocks.listen(self._tell_blocks)
        try:
            while not self._is_closed:
                await self._has_news.wait()
                if self._is_beat_due:
                    self._beat()
                self._has_news.clear()
                reports, self._reports = self._reports, []
                self._num_untaken_bytes = 0
                self._has_room.set()
                yield reports + self._missed_blocks()
        finally:
            if self._blocks is not None:
                self._blocks.leave(self._tell_blocks)
            beating.cancel()
            await self.close()
            await asyncio.gather(beating, return_exceptions=True)

    def end(self) -> None:
        """Makes `frames` end, which closes the session. Calling it twice is allowed."""
        self._is_closed = True
        self._has_news.set()

    async def close(self) -> None:
        """Aborts all open requests and questions. Calling it twice is allowed."""
        self.end()
        tasks = list(self._work.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spread_word(self, submit: Submit, accepted: Accepted) -> None:
        """Tells the other fronts of a prompt, so that each front can route the conversation to its prefix cache."""
        others = list(self._others()) if submit.cache_prompt else []
        if others:
            beginning = beginning_of_submit(submit)
            for other in others:
                other.hear(Heard(beginning.keys, beginning.num_tokens, accepted))

    def _tell_blocks(self, answer: BlocksHeld) -> None:
        self._num_blocks_unread += sum(len(run.numbers) for run in (*answer.stored, *answer.removed))
        if self._num_blocks_unread < MAX_UNREAD:
            stored = [StoredBlocks(run.medium, run.numbers) for run in answer.stored]  # fronts need no tokens
            self._tell(msgspec.structs.replace(answer, stored=stored))
        else:
            self._has_news.set()

    def _missed_blocks(self) -> list[Report]:
        """All blocks that the replica holds, if the front was not told all changes; to be called for each frame."""
        unread, self._num_blocks_unread = self._num_blocks_unread, 0
        if self._blocks is None or unread < MAX_UNREAD or not self._blocks.held.ledger:
            return []
        return [self._blocks.held.whole()]

    def _begin(self, work_id: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._work[work_id] = asyncio.ensure_future(work)
        task.add_done_callback(self._forgetting(work_id))
        self._note_change()

    def _forgetting(self, work_id: str) -> Callable[[asyncio.Task[None]], None]:
        def forget(task: asyncio.Task[None]) -> None:
            if self._work.get(work_id) is task:
                del self._work[work_id]
            self._note_change()

        return forget

    def _note_change(self) -> None:
        for other in self._others():
            other.note_others()

    def _abort(self, work_id: str) -> None:
        if (task := self._work.get(work_id)) is not None:
            task.cancel()

    async def _generate(self, submit: Submit, before: asyncio.Task[None] | None) -> None:
        """Runs a request. `before` is an aborted request with the same id, whose end it first waits for."""
        if before is not None:
            await asyncio.wait([before])
        self._costs[submit.request_id] = _work_of(submit, submit.num_cached)
        resumed = self._resumed[submit.request_id] = asyncio.Event()
        resumed.set()
        try:
            async with aclosing(self._runtime.generate(submit)) as events:
                async for event in events:
                    self._note_progress(submit, event)
                    self._tell(event)
                    self._note_untaken(event)
                    await self._has_room.wait()
                    await resumed.wait()  # events stay unread; the engine pauses the request when its inbox is full
        except StokerError as error:
            self._tell(Failed.of(submit.request_id, error))
        finally:
            del self._resumed[submit.request_id], self._costs[submit.request_id]

    def _note_untaken(self, event: Accepted | Output) -> None:
        self._num_untaken_bytes += inbox.size_of(event)
        if self._num_untaken_bytes >= MAX_UNTAKEN_BYTES:
            self._has_room.clear()

    def _note_progress(self, submit: Submit, event: Accepted | Output) -> None:
        """Updates the request's remaining work; tells other fronts when it is accepted and its prompt is computed."""
        cost = self._costs[submit.request_id]
        if isinstance(event, Accepted):
            if self._blocks is not None and self._blocks.held.ledger:
                num_held = self._blocks.held.num_leading(event.blocks) * BLOCK_ENTRIES
                num_cached = num_held * size_of(submit.prompt) // max(1, event.prompt_tokens)
                self._costs[submit.request_id] = _work_of(submit, num_cached)
            self._spread_word(submit, event)
            self._note_change()
            return
        had_begun = cost.has_begun
        cost.note(event)
        if cost.has_begun and not had_begun:
            self._note_change()

    async def _answer(self, question: Question[Any]) -> None:
        try:
            _check_possible(question)
            answer = await self._runtime.ask(question)
            self._tell(msgspec.structs.replace(answer, question_id=question.question_id))
        except StokerError as error:
            self._tell(Unanswered.of(question.question_id, error))

    def _tell(self, report: Any) -> None:
        self._reports.append(report)
        self._has_news.set()

    def _beat(self) -> None:
        self._is_beat_due = False
        others = list(self._others())
        num_open, num_tokens = sum(other.num_open for other in others), sum(other.num_tokens for other in others)
        health = self._runtime.health()
        self._tell(Beat(health.state, health.num_restarts, health.last_error, health.heartbeat, num_open, num_tokens))

    async def _keep_beating(self) -> None:
        while self._num_unheard * BEAT_S < PATIENCE_S:
            self._num_unheard += 1
            self._beat()
            await asyncio.sleep(BEAT_S)
        self.end()


def _work_of(submit: Submit, num_cached: int) -> Work:
    """The work for a request, with so many cached prompt tokens; both in the estimated tokens that fronts count in."""
    num_tokens = size_of(submit.prompt)
    return Work.of(submit, Beginning((), num_tokens), min(num_cached, num_tokens - 1))


def _check_possible(question: Question[Any]) -> None:
    """Raises UnsupportedParameter for a question that concerns one replica, and not the model."""
    match question:
        case SaveSlot() | RestoreSlot() | EraseSlots(slot=int()):
            raise UnsupportedParameter(
                "a slot belongs to one replica, and the replicas of a cluster change: slots cannot be saved, "
                "restored or erased individually. Erase all of them, or keep KV in a folder (--kv-dir)",
                parameter="id_slot",
            )
        case ChangeAdapters() if not question.is_empty:
            raise UnsupportedParameter(
                "adapters of a model in a cluster are given when it is served (--lora): replicas that start later "
                "would not have the change",
                parameter="lora",
            )
        case _:
            return
