"""Moves the messages between a front and a replica from Ray Serve to a direct connection, once there is one.

```
front   connects with the ticket ───►  replica     meanwhile all messages go through Ray
        has seen the proof       ───►
                                 ◄───              `Moved`, in the last frame of reports through Ray
```

The front sends its orders on the connection when it has read `Moved`. Without a connection nothing moves. This module
knows nothing of Ray.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from stoker.cluster.direct import Entrance, FrontWire, carry
from stoker.cluster.messages import Hello, Moved, Report, Ticket
from stoker.cluster.session import Session


async def frames_through_ray(
    session: Session, entrance: Entrance, ticket: Ticket | None
) -> AsyncGenerator[list[Report], None]:
    """The frames of a session that go through Ray: none while a wire carries them. Ends with the session.

    Args:
        session: the front's session.
        entrance: where the front may connect.
        ticket: what the session's front was given; None = it cannot connect.
    """
    coming = None if ticket is None else entrance.arrival(ticket)
    if coming is not None:
        coming.add_done_callback(lambda done: None if done.cancelled() else session.move())
    async with aclosing(session.frames()) as frames:
        async for frame in frames:
            yield frame
            if coming is not None and _has_moved(frame):
                await carry(session, frames, coming.result())


class FrontReports:
    """The reports for one front, whichever way they come. Belongs to one event loop."""

    def __init__(self) -> None:
        self.wire: FrontWire | None = None
        """The direct connection, once it carries the messages."""
        self._connecting: asyncio.Task[FrontWire | None] | None = None

    async def all_of(self, frames: AsyncGenerator[list[Report], None]) -> AsyncGenerator[list[Report], None]:
        """The reports through Ray, from `Hello` on, and then those of the direct connection.

        Raises:
            LinkBroken: the direct connection ends.
        """
        try:
            async for frame in frames:
                if frame and isinstance(hello := frame[0], Hello):
                    self._connecting = asyncio.ensure_future(FrontWire.of(hello))
                yield frame
                if self._connecting is not None and _has_moved(frame):
                    self.wire = await self._connecting
                    break
            if self.wire is not None:
                async with aclosing(self.wire.reports()) as later:
                    async for frame in later:
                        yield frame
        finally:
            await self._close()

    async def _close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            (wire,) = await asyncio.gather(self._connecting, return_exceptions=True)
            if isinstance(wire, FrontWire):
                wire.close()


def _has_moved(frame: list[Report]) -> bool:
    return any(isinstance(report, Moved) for report in frame)
