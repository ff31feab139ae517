"""The store for responses: ended ones on a shelf with limits, and those that still run in the background.

Each response belongs to an owner, see `access.control.owner_of`. Other owners cannot see it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from stoker.errors import InvalidInput, ResponseNotFound, UnsupportedParameter
from stoker.server.config import ServerConfig
from stoker.server.dialects.responses.client_calls import without_diff
from stoker.server.dialects.responses.client_tool_types import ClientCall, LocalShellCall, PatchCall, ShellCall
from stoker.server.dialects.responses.client_tools import client_call
from stoker.server.dialects.responses.event_log import EventLog
from stoker.server.dialects.responses.input_items import item_part
from stoker.server.dialects.responses.reasoning_types import Compaction, OutputReasoning
from stoker.server.dialects.responses.sealing import unsealed_summary
from stoker.server.dialects.responses.shelf import Key, Shelf, bytes_of
from stoker.server.dialects.responses.summaries import shown_summary
from stoker.server.dialects.responses.tools import full_name, namespace_of
from stoker.server.dialects.responses.types import (
    OutputCall,
    OutputCustomCall,
    OutputItem,
    OutputMessage,
    Response,
)
from stoker.server.observe.bug_log import log_bug
from stoker.text.chat_formats.custom import INPUT
from stoker.text.messages import Json, Message

logger = logging.getLogger(__name__)

_ITEM_ID = re.compile(r"[a-z]+_(?P<owner>[0-9a-f]+).*", re.DOTALL)
"""Items of the output of a response, and of a conversation, have the id of its owner, without the prefix."""
_RUNNING = ("queued", "in_progress")
_LOG_SHARE = 8
"""A log of events is stored up to this fraction of `max_stored_bytes`, as its denominator."""
_INPUT_ID = re.compile(
    r"((msg|cmp|fco|ctco|sho|lsho|apco)_|(?P<call>fc|ctc|sh|lsh|apc)_)"
    r"(?P<stem>[0-9a-f]+_(?P<index>0|[1-9][0-9]{0,8}))(?(call)_(?P<number>0|[1-9][0-9]{0,8}))"
)
"""Ids of the items of a response's input, see `item_parts`. Calls in the output have one number, not two."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A response that has ended, with the conversation that it answers, without the instructions."""

    response: Response
    messages: tuple[Message, ...]
    log: EventLog | None = None
    """The events of its stream, if it was streamed in the background."""

    @property
    def conversation(self) -> tuple[Message, ...]:
        """The conversation that the next turn continues, with the response's answer."""
        return (*self.messages, *_messages_of(self.response.output))

    def find(self, item_id: str) -> Message | None:
        """The message of an item, see `input_parts`; None if there is none.

        The id of an input item contains the index of its message, so no items are built: a request may refer to
        thousands.
        """
        match = _INPUT_ID.fullmatch(item_id)
        if match is None:
            return next((answer_of([item]) for item in self.response.output if item.id == item_id), None)
        if int(match["index"]) >= len(self.messages):
            return None
        number = None if match["number"] is None else int(match["number"])
        part = item_part(match["stem"], self.messages[int(match["index"])], number)
        return part[1] if part is not None and part[0] == item_id else None

    @property
    def answers(self) -> frozenset[str]:
        """Empty: it contains its own output only."""
        return frozenset()

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory. Messages that are shared with earlier turns count again."""
        return bytes_of(self.conversation) + (self.log.size_bytes if self.log is not None else 0)


def _messages_of(output: Sequence[OutputItem]) -> tuple[Message, ...]:
    """The messages of a response's output: a summary if it begins with one, and the answer."""
    if output and isinstance(output[0], Compaction):
        return (answer_of(output[:1]), *(_messages_of(output[1:]) if output[1:] else ()))
    return (answer_of(output),)


def answer_of(items: Sequence[OutputItem]) -> Message:
    """Joins the output items of a response to one message of the assistant; a summary is alone."""
    for item in items:
        if isinstance(item, Compaction):
            return shown_summary(unsealed_summary(item.encrypted_content) or "")
    texts = [item.content[0].text for item in items if isinstance(item, OutputMessage)]
    thoughts = [item.text for item in items if isinstance(item, OutputReasoning)]
    calls = [_call(item) for item in items if not isinstance(item, OutputMessage | OutputReasoning | Compaction)]
    return Message(
        role="assistant",
        content="".join(texts) if texts or not calls else None,
        reasoning="".join(thoughts) or None,
        tool_calls=tuple(calls),
    )


def _call(item: OutputCall | OutputCustomCall | ClientCall) -> dict[str, Json]:
    if isinstance(item, PatchCall):
        return client_call("apply_patch", item.call_id, item.operation.arguments)
    if isinstance(item, ShellCall | LocalShellCall):
        kind = "shell" if isinstance(item, ShellCall) else "local_shell"
        return client_call(kind, item.call_id, item.action.arguments)
    place: dict[str, Json] = {"id": item.call_id, **namespace_of({"namespace": item.namespace})}
    name = full_name({"name": item.name, "namespace": item.namespace})
    if isinstance(item, OutputCustomCall):
        custom: dict[str, Json] = {"name": name, "arguments": {INPUT: item.input}}
        return {**place, "type": "custom", "function": custom}
    function: dict[str, Json] = {"name": name, "arguments": item.arguments}
    return {**place, "type": "function", "function": function}


def _cancelled(response: Response) -> Response:
    return msgspec.structs.replace(response, status="cancelled", output=[_cut_off(item) for item in response.output])


def _cut_off(item: OutputItem) -> OutputItem:
    if isinstance(item, Compaction):  # it is written as a whole
        return item
    if isinstance(item, PatchCall):
        return item if item.status == "completed" else without_diff(item)
    return msgspec.structs.replace(item, status="incomplete")


@dataclass(slots=True)
class _Job:
    """A response that runs in the background."""

    snapshot: Callable[[], Response]
    task: asyncio.Task[None]
    messages: tuple[Message, ...]
    log: EventLog | None

    def cancel(self) -> None:
        self.task.cancel()
        if self.log is not None:
            self.log.end()


class ResponseStore:
    """Stores responses, and runs those in the background. Evicts the oldest first. Belongs to one event loop.

    Args:
        config: `max_stored_responses`, `max_stored_bytes` and `stored_response_s` are used.
        clock: returns a time in seconds; only differences are used.
    """

    def __init__(self, config: ServerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.shelf = Shelf(config, clock)
        """Holds ended responses, and conversations."""
        self._max_log_bytes = config.max_stored_bytes // _LOG_SHARE
        self._jobs: dict[Key, _Job] = {}
        """Responses that run in the background; bounded by the engine, which runs or queues each of them."""

    def __len__(self) -> int:
        return len(self.shelf)

    @property
    def is_off(self) -> bool:
        """Whether the configuration disables storage."""
        return self.shelf.is_off

    def put(self, owner: str, response: Response, messages: Sequence[Message], log: EventLog | None = None) -> None:
        """Stores a response that has ended, unless it is larger than the limit of stored bytes.

        A log that takes a large part of that limit is not stored: it contains the whole response several times.
        """
        log = None if log is not None and log.size_bytes > self._max_log_bytes else log
        self.shelf.put((owner, response.id), Stored(response, tuple(messages), log))

    def get(self, owner: str, response_id: str) -> Response:
        """A response as it is now.

        Raises:
            ResponseNotFound: the response was never stored, was evicted or deleted, or has another owner.
        """
        return (self._running((owner, response_id)) or self._find(owner, response_id)).response

    def conversation(self, owner: str, response_id: str) -> tuple[Message, ...]:
        """The conversation up to and including a response.

        Raises:
            ResponseNotFound: see `get`.
            InvalidInput: the response failed, was cancelled or still runs, so it cannot be continued.
        """
        stored = self._running((owner, response_id)) or self._find(owner, response_id)
        if stored.response.status not in ("completed", "incomplete"):
            message = f"the response {response_id} is {stored.response.status}: it cannot be continued"
            raise InvalidInput(message, parameter="previous_response_id")
        return stored.conversation

    def input_of(self, owner: str, response_id: str) -> tuple[Message, ...]:
        """The conversation that a response answers, without the instructions.

        Raises:
            ResponseNotFound: see `get`.
        """
        return (self._running((owner, response_id)) or self._find(owner, response_id)).messages

    def events_of(self, owner: str, response_id: str) -> EventLog:
        """The events of a response that was streamed in the background.

        Raises:
            ResponseNotFound: see `get`.
            UnsupportedParameter: the response was not streamed in the background, or its events were too large.
        """
        log = (self._running((owner, response_id)) or self._find(owner, response_id)).log
        if log is None:
            message = (
                "`stream`: this response was not made with both `background` and `stream`, or its events are no longer "
                "kept: fetch it without `stream`"
            )
            raise UnsupportedParameter(message, parameter="stream")
        return log

    def message(self, owner: str, item_id: str, parameter: str) -> Message:
        """The message of an item in a response's output or input.

        Args:
            owner: owner of the response.
            item_id: id of the item in a response's `output`, or in the list of its input items.
            parameter: path of the id in the request, for the error.

        Raises:
            ResponseNotFound: the response is not stored, see `get`, or has no such message.
        """
        match = _ITEM_ID.fullmatch(item_id)
        keys = [(owner, f"{prefix}_{match['owner']}") for prefix in ("resp", "conv")] if match else []
        known = (look(key) for key in keys for look in (self.shelf.get, self._ending, self.shelf.holder_of))
        messages = (value.find(item_id) for value in known if value is not None)
        message = next((found for found in messages if found is not None), None)
        if message is None:
            raise ResponseNotFound(f"the item {item_id[:100]!r} is not stored here, or no longer", parameter=parameter)
        return message

    def delete(self, owner: str, response_id: str) -> None:
        """Deletes a response; one that runs in the background is cancelled.

        Raises:
            ResponseNotFound: see `get`.
        """
        job = self._jobs.pop((owner, response_id), None)
        if job is not None:
            job.cancel()
        else:
            self._find(owner, response_id)
            self.shelf.remove((owner, response_id))

    def start(
        self,
        owner: str,
        response_id: str,
        snapshot: Callable[[], Response],
        work: Awaitable[Response],
        messages: Sequence[Message],
        log: EventLog | None = None,
    ) -> None:
        """Runs `work` in the background, and stores the response that it returns.

        Args:
            owner: owner of the response.
            response_id: id of the response.
            snapshot: returns the response as it is now.
            work: computes the response, also one that failed. Exceptions are logged as bugs.
            messages: the conversation that the response answers.
            log: receives the events of `work`, and is ended here; None = the response is not streamed.
        """
        key = (owner, response_id)
        task = asyncio.create_task(self._run(key, work), name=f"stoker-{response_id}")
        job = self._jobs[key] = _Job(snapshot, task, tuple(messages), log)
        task.add_done_callback(lambda task: self._note_end(key, job))

    async def cancel(self, owner: str, response_id: str) -> Response:
        """Cancels a response that runs in the background; one that has ended is returned unchanged.

        Raises:
            ResponseNotFound: see `get`.
            InvalidInput: the response did not run in the background.
        """
        job = self._jobs.pop((owner, response_id), None)
        if job is None:
            response = self._find(owner, response_id).response
            if not response.background:
                message = "only a response with `background: true` can be canceled; close the connection to end others"
                raise InvalidInput(message, parameter="response_id")
            return response
        response = job.snapshot()
        if response.status in _RUNNING:  # otherwise it ends at this moment
            response = _cancelled(response)
        job.cancel()
        self.put(owner, response, job.messages, job.log)  # before the first await, so that other requests find it
        await asyncio.wait([job.task])
        return response

    async def _run(self, key: Key, work: Awaitable[Response]) -> None:
        response = await work
        job = self._jobs.pop(key, None)
        if job is not None:  # otherwise it was cancelled or deleted just before its end
            self.put(key[0], response, job.messages, job.log)

    def _note_end(self, key: Key, job: _Job) -> None:
        self._jobs.pop(key, None)
        if job.log is not None:
            job.log.end()
        if not job.task.cancelled() and (fault := job.task.exception()) is not None:
            log_bug(logger, f"the response {key[1]} in the background", fault)

    def _running(self, key: Key) -> Stored | None:
        """A response in the background as it is now."""
        job = self._jobs.get(key)
        return None if job is None else Stored(job.snapshot(), job.messages, job.log)

    def _ending(self, key: Key) -> Stored | None:
        """A response in the background that is complete, but not yet on the shelf: its client may know that."""
        running = self._running(key)
        return None if running is None or running.response.status in _RUNNING else running

    def _find(self, owner: str, response_id: str) -> Stored:
        stored = self.shelf.get((owner, response_id))
        if not isinstance(stored, Stored):
            message = f"the response {response_id!r} is not stored here, or no longer"
            if self.is_off:
                message = f"the response {response_id!r} is not stored: this server stores no responses"
            raise ResponseNotFound(message, response_id=response_id, parameter="response_id")
        return stored
