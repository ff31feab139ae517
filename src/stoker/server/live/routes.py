"""The endpoints that show what engines do: `/engine/state`, `/engine/prefix/{node}`, and `/engine/events` with news."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from math import isfinite
from typing import TypeVar

import msgspec
from starlette.responses import Response

from stoker.engine.question_messages import Look, ReadPrefix
from stoker.errors import InvalidInput, StokerError
from stoker.runtime.model_events import ModelEvent
from stoker.runtime.registry import ServedModel
from stoker.runtime.watching import HZ, Sight, Watch, Watches
from stoker.server.access.control import may_administer
from stoker.server.api import Call, Router
from stoker.server.errors import json_response
from stoker.server.live.entries import Differences, Reader, engine_entry, event
from stoker.server.live.types import EVENTS, VERSION, EngineState, Hello, News, PrefixReply, Snapshot, Tick
from stoker.server.observe.account import account_of
from stoker.server.transport.connection import STOP
from stoker.server.transport.sse import EventStream

router = Router(api="Stoker")

_SIGN_OF_LIFE_S = 5.0
"""Time without changes after which an empty tick is sent, from which a page sees that the server is alive."""
_SNAPSHOT_EVERY_S = 10.0
_MAX_DIGITS = 18
"""Maximum number of digits in a parameter, so that the number fits into 64 bits."""


@router.endpoint(
    "GET",
    "/engine/state",
    "Shows the state of a model's engines: sequences, the prefix tree of the KV pool, the last steps.",
    query={"model": str},
    reply=EngineState,
)
async def state(call: Call[None]) -> Response:
    served, reader = call.loaded(call.query.get("model")), _reader(call)
    glimpse = await call.wait(served.runtime.ask(Look()))
    engines = [engine_entry(view, reader) for view in glimpse.engines]
    hello = msgspec.structs.asdict(_hello(served, reader, HZ))
    return json_response(EngineState(**hello, t=time.time(), engines=engines))


@router.endpoint(
    "GET",
    "/engine/prefix/{node}",
    "Shows the text of a node of the prefix tree, up to its first 200 tokens.",
    query={"model": str, "replica": int},
    reply=PrefixReply,
    is_admin=True,
)
async def prefix(call: Call[None]) -> Response:
    """Shows a node's text, to administrators only, because it may belong to another client's request."""
    node, replica = _whole("node", call.path_parameter("node")), _whole("replica", call.query.get("replica") or "0")
    served = call.loaded(call.query.get("model"))
    found = await call.wait(served.runtime.ask(ReadPrefix(node=node, replica=replica)))
    return json_response(
        PrefixReply(id=node, begin=found.begin, n=found.num_tokens, n_read=found.num_read, text=found.text)
    )


@router.endpoint(
    "GET",
    "/engine/events",
    "Streams `/engine/state`: a snapshot, then changes, up to `hz` times a second; and news of models.",
    query={"model": str, "hz": float},
    event=EVENTS,
)
async def follow(call: Call[None]) -> EventStream:
    served, reader, hz = call.loaded(call.query.get("model")), _reader(call), _hz(call)
    await call.wait(served.runtime.ask(Look()))  # refuse unobservable models before a response begins
    name = served.model_id
    watch = call.server.part(Watches, Watches).of(name, lambda: call.loaded(name).runtime)
    watch.check_room()
    events = _events(call, watch, _hello(served, reader, hz), reader)
    return EventStream(events, events.aclose, call.config)


async def _events(call: Call[None], watch: Watch, hello: Hello, reader: Reader) -> AsyncGenerator[bytes, None]:
    yield event("hello", hello)
    stop = call.request.scope.get("state", {}).get(STOP)
    differences, sent_s, whole_s = Differences(), time.monotonic(), time.monotonic()
    failures = EngineFailures(hello.model)
    async with aclosing(both(watch.follow(1 / hello.hz), call.registry.events.follow())) as items:
        async for sight in items:
            if stop is not None and stop.is_set:
                return
            if isinstance(sight, ModelEvent):
                yield event("news", model_news(sight))
                continue
            if (news := failures.of(sight.error, is_loaded=_is_loaded(call, hello.model))) is not None:
                yield event("news", news)
            now_s = time.monotonic()
            if now_s - whole_s >= _SNAPSHOT_EVERY_S:
                differences, whole_s = Differences(), now_s
            change = differences.of(time.time(), [engine_entry(view, reader) for view in sight.engines], _error(sight))
            if change is not None:
                sent_s = now_s
                yield event("snapshot" if isinstance(change, Snapshot) else "tick", change)
            elif now_s - sent_s >= _SIGN_OF_LIFE_S:
                sent_s = now_s
                yield event("tick", Tick(t=time.time(), engines=[]))


def _is_loaded(call: Call[None], model: str) -> bool:
    try:
        return call.registry.resolve(model).served is not None
    except StokerError:
        return False  # the model was removed


def _error(sight: Sight) -> str | None:
    return None if sight.error is None else sight.error.message


def _reader(call: Call[None]) -> Reader:
    scope = call.request.scope
    return Reader(may_administer(scope), account_of(scope).key_name)


def _hello(served: ServedModel, reader: Reader, hz: float) -> Hello:
    card = served.runtime.card
    return Hello(
        v=VERSION,
        model=served.model_id,
        backend=card.backend,
        context=card.context_size,
        parallel=card.parallel,
        max_queue=card.max_queue,
        may_read=reader.may_read,
        hz=hz,
    )


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise InvalidInput(f"`{name}` must be a whole number from 0 on", parameter=name)
    return int(text)


def _hz(call: Call[None]) -> float:
    try:
        hz = float(call.query.get("hz") or HZ)
    except ValueError:
        hz = float("nan")
    if not (isfinite(hz) and 0.1 <= hz <= HZ):
        raise InvalidInput(f"`hz` must be a number from 0.1 to {HZ:g}", parameter="hz")
    return hz


FirstT = TypeVar("FirstT")
SecondT = TypeVar("SecondT")


def model_news(event: ModelEvent) -> News:
    """The news about a change of a model's state."""
    why = event.message or event.reason or event.stage
    return News(t=time.time(), kind=event.state, id=event.model, part=event.loaded_part, why=why)


class EngineFailures:
    """Detects when the engines of one model stop answering, and when they answer again.

    Args:
        model: id of the model.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._is_down = False

    def of(self, error: StokerError | None, *, is_loaded: bool) -> News | None:
        """The news after a query of the engines, which gave `error` or None; None = no news.

        A model that was unloaded has not failed.
        """
        was_down, self._is_down = self._is_down, error is not None and (is_loaded or self._is_down)
        if self._is_down == was_down:
            return None
        kind, why = ("crashed", "" if error is None else error.message) if self._is_down else ("restarted", "")
        return News(t=time.time(), kind=kind, id=self._model, part=None, why=why)


async def both(
    first: AsyncGenerator[FirstT, None], second: AsyncGenerator[SecondT, None]
) -> AsyncGenerator[FirstT | SecondT, None]:
    """Merges two generators in the order of arrival, until one of them ends. Closes both."""
    waiting = {asyncio.ensure_future(_next(source)): source for source in (first, second)}
    try:
        while True:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                source = waiting.pop(task)
                try:
                    item = task.result()
                except StopAsyncIteration:
                    return
                yield item
                waiting[asyncio.ensure_future(_next(source))] = source
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await first.aclose()
        await second.aclose()


async def _next(source: AsyncGenerator[FirstT, None] | AsyncGenerator[SecondT, None]) -> FirstT | SecondT:
    return await anext(source)
