"""Responses that are kept: those that have ended, for a while, and those that run in the background. In memory only."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from stoker.errors import InvalidInput, ResponseNotFound
from stoker.server.config import ServerConfig
from stoker.server.wire.openai_responses import OutputMessage, Response
from stoker.text.messages import Message

logger = logging.getLogger(__name__)

_BYTES_PER_MESSAGE = 512
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class Stored:
    """A response that has ended, with the conversation that led to it, instructions left out."""

    response: Response
    messages: tuple[Message, ...]

    @property
    def conversation(self) -> tuple[Message, ...]:
        """What a next turn goes on from."""
        return (*self.messages, *map(_answer, self.response.output))

    def find(self, item_id: str) -> Message | None:
        """The message of an item, see `translate.openai_input_items`. A request may name thousands, so none is made."""
        index = item_id.removeprefix(f"msg_{self.response.id.removeprefix('resp_')}_")
        if _INDEX.fullmatch(index) and int(index) < len(self.messages):
            return self.messages[int(index)]
        return next((_answer(item) for item in self.response.output if item.id == item_id), None)

    @property
    def size_bytes(self) -> int:
        """Roughly. Messages that it shares with earlier turns count again."""
        return sum(_BYTES_PER_MESSAGE + 2 * len(message.text) for message in self.conversation)


def _answer(item: OutputMessage) -> Message:
    return Message(role=item.role, content=item.content[0].text)


@dataclass(slots=True)
class _Job:
    """A response that runs in the background."""

    snapshot: Callable[[], Response]
    task: asyncio.Task[None]
    messages: tuple[Message, ...]


class ResponseStore:
    """Bounded by number, bytes and age: the oldest leave first. Belongs to one event loop.

    Args:
        config: `max_stored_responses`, `max_stored_bytes` and `stored_response_s` are used.
        clock: seconds; only differences count.
    """

    def __init__(self, config: ServerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._stored: OrderedDict[str, tuple[float, Stored]] = OrderedDict()
        """In the order in which they ended, with the time at which they did."""
        self._num_bytes = 0
        self._jobs: dict[str, _Job] = {}
        """Bounded by the engine, in which each of them has a place."""

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, response: Response, messages: Sequence[Message]) -> None:
        """Keeps a response that has ended; one that is larger than everything that may be kept is not kept."""
        stored = Stored(response, tuple(messages))
        self._stored[response.id] = (self._clock(), stored)
        self._num_bytes += stored.size_bytes
        self._evict()

    def get(self, response_id: str) -> Response:
        """A response as it is now.

        Raises:
            ResponseNotFound: it was never kept, has left, or was deleted.
        """
        job = self._jobs.get(response_id)
        return job.snapshot() if job is not None else self._find(response_id).response

    def conversation(self, response_id: str) -> tuple[Message, ...]:
        """The conversation up to and with a response.

        Raises:
            ResponseNotFound: see `get`.
            InvalidInput: it has no answer to go on from, or not yet.
        """
        response = self.get(response_id)
        if response.status not in ("completed", "incomplete"):
            message = f"the response {response_id} is {response.status}: there is nothing to go on from"
            raise InvalidInput(message, parameter="previous_response_id")
        return self._find(response_id).conversation

    def input_of(self, response_id: str) -> tuple[Message, ...]:
        """The conversation that a response answers, instructions left out.

        Raises:
            ResponseNotFound: see `get`.
        """
        job = self._jobs.get(response_id)
        return job.messages if job is not None else self._find(response_id).messages

    def message(self, item_id: str, parameter: str) -> Message:
        """The message of an item: of a response's answer, or of what it answers.

        Args:
            item_id: as in a response's `output`, or in the list of its input.
            parameter: where a request names it.

        Raises:
            ResponseNotFound: its response was never kept, has left or was deleted, or has no such message.
        """
        self._evict()
        entry = self._stored.get(f"resp_{item_id.removeprefix('msg_').partition('_')[0]}")
        message = None if entry is None else entry[1].find(item_id)
        if message is None:
            raise ResponseNotFound(f"the item {item_id[:100]!r} is not stored here, or no longer", parameter=parameter)
        return message

    def delete(self, response_id: str) -> None:
        """Forgets a response; one that runs in the background is ended.

        Raises:
            ResponseNotFound: see `get`.
        """
        job = self._jobs.pop(response_id, None)
        if job is not None:
            job.task.cancel()
        else:
            self._find(response_id)
            self._remove(response_id)

    def start(
        self,
        response_id: str,
        snapshot: Callable[[], Response],
        work: Awaitable[Response],
        messages: Sequence[Message],
    ) -> None:
        """Runs `work` in the background; the response that it ends with is kept.

        Args:
            response_id: of the response.
            snapshot: gives the response as it is now.
            work: raises nothing but our own bugs.
            messages: the conversation that it answers.
        """
        task = asyncio.create_task(self._run(response_id, work, messages), name=f"stoker-{response_id}")
        self._jobs[response_id] = _Job(snapshot, task, tuple(messages))
        task.add_done_callback(lambda task: self._note_end(response_id, task))

    async def cancel(self, response_id: str) -> Response:
        """Ends a response that runs in the background; nothing happens if it has ended.

        Raises:
            ResponseNotFound: see `get`.
            InvalidInput: it never ran in the background.
        """
        job = self._jobs.pop(response_id, None)
        if job is None:
            response = self._find(response_id).response
            if not response.background:
                message = "only a response with `background: true` can be cancelled; leave the connection to end others"
                raise InvalidInput(message, parameter="response_id")
            return response
        job.task.cancel()
        await asyncio.wait([job.task])
        response = msgspec.structs.replace(job.snapshot(), status="cancelled")
        self.put(response, job.messages)
        return response

    async def _run(self, response_id: str, work: Awaitable[Response], messages: Sequence[Message]) -> None:
        response = await work
        self._jobs.pop(response_id, None)
        self.put(response, messages)

    def _note_end(self, response_id: str, task: asyncio.Task[None]) -> None:
        self._jobs.pop(response_id, None)
        if not task.cancelled() and (fault := task.exception()) is not None:
            logger.error("a response in the background failed: %s", type(fault).__name__)

    def _find(self, response_id: str) -> Stored:
        self._evict()
        entry = self._stored.get(response_id)
        if entry is None:
            message = f"the response {response_id!r} is not stored here, or no longer"
            raise ResponseNotFound(message, response_id=response_id, parameter="response_id")
        return entry[1]

    def _evict(self) -> None:
        oldest_s = self._clock() - self._config.stored_response_s
        while self._stored:
            response_id, (ended_s, _) = next(iter(self._stored.items()))
            is_too_much = (
                len(self._stored) > self._config.max_stored_responses or self._num_bytes > self._config.max_stored_bytes
            )
            if not is_too_much and ended_s > oldest_s:
                return
            self._remove(response_id)

    def _remove(self, response_id: str) -> None:
        _, stored = self._stored.pop(response_id)
        self._num_bytes -= stored.size_bytes
