"""A connection to a replica in the same process, which a test can break or freeze."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing

from stoker.cluster.messages import Order, Report, decode_orders, decode_reports, encode
from stoker.cluster.remote import LinkBroken
from stoker.cluster.session import Session
from stoker.engine.question_messages import BlocksHeld
from stoker.runtime.base import Runtime
from stoker.runtime.block_follower import BlockFollower


class MemoryLink:
    """Whatever is said is encoded and decoded on its way."""

    def __init__(self, runtime: Runtime, node: str = "10.0.0.1") -> None:
        self._runtime = runtime
        self._node = node
        self.session: Session | None = None
        self._blocks = BlockFollower(runtime)
        self.drops_blocks = False
        """What the replica says of its blocks is lost on the way."""
        self.num_dropped = 0
        self.others: list[Session] = []
        """Those of other fronts."""
        self.is_frozen = False
        self.orders: list[Order] = []
        self.num_told = 0
        """How often orders, or none, have arrived."""
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def delay(self, on_part: Callable[[], None]) -> None:
        """What happens before orders arrive: nothing. A test may replace it."""

    def join(self) -> Session:
        """Another front is connected to the same replica."""
        mine = self.session
        assert mine is not None
        self.others.append(Session(self._runtime, self._node, lambda: [mine], self._blocks))
        return self.others[-1]

    def break_off(self, error: Exception | None = None) -> None:
        """As when the replica's process is killed, or with another error."""
        self._broken.set_exception(error or LinkBroken("was killed"))

    async def reports(self) -> AsyncGenerator[list[Report], None]:
        self.session = Session(self._runtime, self._node, lambda: self.others, self._blocks)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._blocks.close)
            frames = await stack.enter_async_context(aclosing(self.session.frames()))
            while True:
                coming = asyncio.ensure_future(anext(frames, None))
                try:
                    await asyncio.wait([coming, self._broken], return_when=asyncio.FIRST_COMPLETED)
                    if self._broken.done():
                        self._broken.result()
                    frame = coming.result()
                finally:
                    coming.cancel()
                    await asyncio.gather(coming, return_exceptions=True)
                if frame is None:
                    return
                if self.is_frozen:
                    await asyncio.Event().wait()
                if self.drops_blocks:
                    kept = [report for report in frame if not isinstance(report, BlocksHeld)]
                    self.num_dropped += len(frame) - len(kept)
                    frame = kept
                yield decode_reports(encode(frame))

    async def tell(self, orders: list[Order], on_part: Callable[[], None]) -> None:
        if self.is_frozen:
            await asyncio.Event().wait()
        assert self.session is not None
        await self.delay(on_part)
        self.orders += orders
        self.num_told += 1
        self.session.obey(decode_orders(encode(orders)))
        on_part()
