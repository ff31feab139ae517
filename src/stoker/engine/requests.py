"""The open requests of one engine process: their outputs, their pauses, and their repetition after a crash."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from stoker.engine.cards import ModelCard
from stoker.engine.door import Door
from stoker.engine.inbox import Inbox, InboxLimits
from stoker.engine.protocol import Abort, Accepted, Command, Failed, Output, Pause, Resume, Submit
from stoker.errors import Cancelled, EngineCrashed, InvalidInput, ModelNotLoaded, StokerError

Send: TypeAlias = Callable[[Command], None]
"""Gives a command to the child; raises `ModelNotLoaded` if no child is ready."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """One request, from its start until it has ended."""

    submit: Submit
    inbox: Inbox
    deadline: float | None
    """Deadline on the event loop's clock; None = no deadline."""
    is_accepted: bool = False
    has_begun: bool = False
    """Output has arrived, so a crash ends the request instead of starting it over."""
    is_repeated: bool = False
    is_paused: bool = False
    patience_ends: asyncio.TimerHandle | None = None
    """Timer of a paused request: when it fires, the request is cancelled if its reader has read nothing."""


class Requests:
    """The requests of one engine. The supervisor notifies it of events. Belongs to one event loop.

    Args:
        send: gives a command to the child.
        door: refuses requests beyond its capacity.
        limits: how far a reader may fall behind.
        repeat_wait_s: seconds that requests without output wait for a restarted child; None = a crash ends them.
    """

    def __init__(self, send: Send, door: Door, limits: InboxLimits, repeat_wait_s: float | None) -> None:
        self._send = send
        self._door = door
        self._limits = limits
        self._repeat_wait_s = repeat_wait_s
        self._present: dict[str, PendingRequest] = {}
        """Requests given to the current child, in order of arrival."""
        self._stranded: dict[str, PendingRequest] = {}
        """Requests that wait for a restarted child."""
        self._waiting_ends: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._present) + len(self._stranded)

    def open(self, submit: Submit) -> PendingRequest:
        """Gives a request to the child.

        Raises:
            InvalidInput: the request's id is in use, or a string in it is not valid Unicode.
            Overloaded: too many requests are open; the request was not sent.
            ModelNotLoaded: no child is ready.
        """
        if submit.request_id in self._present or submit.request_id in self._stranded:
            raise InvalidInput(f"request id {submit.request_id!r} is already in use", parameter="request_id")
        self._door.check(len(self))
        self._send(submit)
        clock = asyncio.get_running_loop().time
        deadline = None if submit.timeout_s is None else clock() + submit.timeout_s
        request = PendingRequest(submit, Inbox(self._limits, clock), deadline)
        self._present[submit.request_id] = request
        return request

    def close(self, request: PendingRequest) -> None:
        """Drops a request that is no longer read, and aborts it in the engine if it has not ended. Never waits."""
        request_id = request.submit.request_id
        self._stranded.pop(request_id, None)
        if self._leave(request_id) is not None:
            with contextlib.suppress(ModelNotLoaded):  # no child is ready, so there is nothing to free
                self._send(Abort(request_id))

    def note_read(self, request: PendingRequest) -> None:
        """Resumes a paused request whose reader has caught up. To be called after each `Inbox.get`.

        Raises:
            ModelNotLoaded: the child does not take the `Resume` command.
        """
        if request.is_paused and request.inbox.has_caught_up:
            self._send(Resume(request.submit.request_id))
            _stop_pausing(request)

    def fail(self, request_id: str, error: StokerError) -> None:
        """Ends one request with `error`. Unknown ids are ignored."""
        request = self._present.get(request_id) or self._stranded.get(request_id)
        if request is not None:
            self.close(request)
            request.inbox.end(error)

    def end_all(self, error: StokerError) -> None:
        """Ends all requests with `error`."""
        ended = [*self._present.values(), *self._stranded.values()]
        self._present.clear()
        self._stranded.clear()
        self._stop_waiting()
        for request in ended:
            _stop_pausing(request)
            request.inbox.end(error)

    def on_ready(self, card: ModelCard) -> None:
        """Sends the requests that waited for a restarted child. See `Listener`."""
        self._stop_waiting()
        stranded, self._stranded = self._stranded, {}
        for request_id, request in stranded.items():
            request.is_repeated = True
            self._present[request_id] = request
            self._send(_with_time_left(request))

    def on_event(self, event: Accepted | Output | Failed) -> None:
        """Delivers an event to its request's inbox; events of ended requests are ignored. See `Listener`."""
        request = self._present.get(event.request_id)
        if request is None:
            return
        match event:
            case Output():
                if request.is_accepted:  # else the output belongs to an aborted request with the same id
                    self._put(request, event)
            case Accepted():
                if not request.is_accepted:
                    request.is_accepted = True
                    request.inbox.put(event)
            case Failed():
                self._leave(event.request_id)
                request.inbox.end(event.error())

    def on_down(self, reason: str) -> None:
        """Keeps requests without output for a restarted child, once each, and ends the others. See `Listener`."""
        lost, self._present = self._present, {}
        for request_id, request in lost.items():
            _stop_pausing(request)
            if request.has_begun or request.is_repeated or self._repeat_wait_s is None:
                request.inbox.end(_crash(reason))
            else:
                self._stranded[request_id] = request
        if self._stranded and self._waiting_ends is None:
            assert self._repeat_wait_s is not None
            loop = asyncio.get_running_loop()
            self._waiting_ends = loop.call_later(self._repeat_wait_s, self._end_stranded, reason)

    def _put(self, request: PendingRequest, output: Output) -> None:
        request.has_begun |= output.progress is None
        is_overdue = request.inbox.is_overdue
        request.inbox.put(output)
        if output.finish_reason is not None:
            self._leave(output.request_id)
        elif is_overdue:
            self._give_up(request)
        elif request.inbox.is_behind and not request.is_paused:
            self._pause(request)

    def _pause(self, request: PendingRequest) -> None:
        with contextlib.suppress(ModelNotLoaded):  # the next output, if there is one, tries to pause it again
            self._send(Pause(request.submit.request_id))
            request.is_paused = True
            self._keep_patience(request)

    def _keep_patience(self, request: PendingRequest) -> None:
        loop = asyncio.get_running_loop()
        request.patience_ends = loop.call_later(request.inbox.patience_s, self._end_patience, request)

    def _end_patience(self, request: PendingRequest) -> None:
        if request.inbox.is_overdue:
            self._give_up(request)
        else:  # the reader has read something since
            self._keep_patience(request)

    def _give_up(self, request: PendingRequest) -> None:
        self.close(request)
        request.inbox.end(Cancelled("the reader of this answer fell too far behind"))

    def _leave(self, request_id: str) -> PendingRequest | None:
        request = self._present.pop(request_id, None)
        if request is not None:
            _stop_pausing(request)
            self._door.note_departure(asyncio.get_running_loop().time())
        return request

    def _end_stranded(self, reason: str) -> None:
        stranded, self._stranded = self._stranded, {}
        self._waiting_ends = None
        for request in stranded.values():
            request.inbox.end(_crash(reason))

    def _stop_waiting(self) -> None:
        if self._waiting_ends is not None:
            self._waiting_ends.cancel()
            self._waiting_ends = None


def _stop_pausing(request: PendingRequest) -> None:
    request.is_paused = False
    if request.patience_ends is not None:
        request.patience_ends.cancel()
        request.patience_ends = None


def _crash(reason: str) -> EngineCrashed:
    return EngineCrashed(f"the engine process {reason} while it worked on the request; it is being started again")


def _with_time_left(request: PendingRequest) -> Submit:
    if request.deadline is None:
        return request.submit
    left_s = request.deadline - asyncio.get_running_loop().time()
    return msgspec.structs.replace(request.submit, timeout_s=max(0.0, left_s))
