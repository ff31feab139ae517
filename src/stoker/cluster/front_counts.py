"""Collects the metrics of all fronts when Prometheus scrapes one of them. It renders nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from stoker.runtime.registry import Registry
from stoker.server.observe.front_metrics import Fronts, RequestSample, request_samples
from stoker.server.observe.response_counts import ResponseCounts

logger = logging.getLogger(__name__)

ASK_S = 2.0
"""Seconds that the answers of all fronts may take; else the scrape has no metrics of other fronts."""
FRESH_S = 1.0
"""Seconds for which answers are reused, because each call goes to every front, however often clients scrape."""


class Counted(msgspec.Struct, frozen=True, array_like=True):
    """The metrics of one front, as it sends them to others."""

    front: str
    samples: list[RequestSample]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Counted).decode


class FrontCounts:
    """The metrics of one front, with access to those of the others. Belongs to one event loop.

    Args:
        own: the name of this front.
        registry: this front's models.
        ask_all: returns what `told` returns on every front, including this one.
        clock: seconds; only differences count.
    """

    def __init__(
        self,
        own: str,
        registry: Registry,
        ask_all: Callable[[], Awaitable[Sequence[bytes]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.responses = ResponseCounts()
        self.fronts = Fronts(own, self._others)
        self._registry = registry
        self._ask_all = ask_all
        self._clock = clock
        self._asking: asyncio.Future[Mapping[str, Sequence[RequestSample]]] | None = None
        self._asked_at = 0.0

    def told(self) -> bytes:
        """This front's metrics, encoded for other fronts."""
        return _encode(Counted(self.fronts.own, request_samples(self._registry.statuses(), self.responses)))

    async def _others(self) -> Mapping[str, Sequence[RequestSample]]:
        if self._asking is None or (self._asking.done() and self._clock() - self._asked_at >= FRESH_S):
            self._asked_at = self._clock()
            self._asking = asyncio.ensure_future(self._ask())
        return await asyncio.shield(self._asking)

    async def _ask(self) -> Mapping[str, Sequence[RequestSample]]:
        try:
            async with asyncio.timeout(ASK_S):
                told = [_decode(each) for each in await self._ask_all()]
        except (TimeoutError, RuntimeError, OSError) as error:
            logger.warning("the other fronts do not say what they have counted: %s", error)
            return {}
        return {each.front: each.samples for each in told if each.front != self.fronts.own}
