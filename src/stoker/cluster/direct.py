"""A TCP connection between a front and a replica, beside Ray Serve's own: lists of orders one way, of reports back.

A call through Ray Serve takes a millisecond or two, in both processes; a message on this connection takes a tenth.

```
front   name and secret of the ticket ───►  replica     the ticket came in `Hello`, through Ray
                       the proof      ◄───              the replica's own secret: it has accepted this front
        nothing                       ───►              a message without content: the front has seen the proof
        orders                        ───►
                   reports or nothing ◄───              a message without content: a part of the orders has arrived
```

The front connects while messages go through Ray, see `handover`.

A message is one part or several. Four bytes precede a part: its length, and whether more parts follow. What a slow
front has not read yet is bounded by the sizes below. This module knows nothing of Ray.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import random
import secrets
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from stoker.cluster.messages import Hello, Report, Ticket, decode_orders, decode_reports, encode
from stoker.cluster.remote import LinkBroken
from stoker.cluster.session import PATIENCE_S, Session

logger = logging.getLogger(__name__)

ATTACH_S = 10.0
"""Seconds in which a front has to connect. If it does not, all messages of the session go through Ray, as before."""
MAX_BYTES = 256 * 2**20
"""Maximum size of a message. Longer lists of orders go through Ray; no report is as long."""
PART_BYTES = 64 * 2**10
"""Maximum size of a part. A part that arrives shows that the connection works, however long the message is."""
SOCKET_BYTES = 32 * 2**10
"""Size of the buffers of sockets for reports. Linux doubles it."""
BUFFER_BYTES = 16 * 2**10
"""Unsent bytes above which the replica waits, and unread bytes above which the front's socket is not read."""
MAX_STRANGERS = 64
"""Maximum number of connections that have not shown a ticket yet; further ones are closed at once."""
_HEAD_BYTES = 4
_MORE = 2**31
_SECRET_BYTES = 16
_NOTHING = b""


class Wire:
    """One end of a connection. Belongs to one event loop.

    Args:
        reader: of the connection.
        writer: of the connection.
        max_bytes: maximum size of a message that is read.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._reader = reader
        self._writer = writer
        self._begun = bytearray()
        """The parts of a message that is not complete yet."""
        writer.transport.set_write_buffer_limits(high=BUFFER_BYTES)

    async def read(self) -> bytes | None:
        """Waits for the next message; None = a part of a longer message has arrived.

        Raises:
            OSError: the connection breaks, or a message is too long.
            EOFError: the connection was closed.
        """
        head = int.from_bytes(await self._reader.readexactly(_HEAD_BYTES), "little")
        size, has_more = head & (_MORE - 1), head >= _MORE
        if size > PART_BYTES or len(self._begun) + size > self.max_bytes:
            raise OSError(f"a message has more than {self.max_bytes} bytes, or a part has {size}")
        part = await self._reader.readexactly(size)
        if not size or not (has_more or self._begun):
            return part
        self._begun += part
        if has_more:
            return None
        whole, self._begun = bytes(self._begun), bytearray()
        return whole

    async def send(self, content: bytes) -> None:
        """Sends a message; waits while more than `BUFFER_BYTES` are unsent.

        Raises:
            OSError: the connection breaks, or the other end takes nothing for `PATIENCE_S`.
        """
        for start in range(0, len(content) or 1, PART_BYTES):
            part = content[start : start + PART_BYTES]
            more = _MORE if start + PART_BYTES < len(content) else 0
            self._write((len(part) | more).to_bytes(_HEAD_BYTES, "little") + part)
            if self._writer.transport.get_write_buffer_size() > BUFFER_BYTES:
                async with asyncio.timeout(PATIENCE_S):
                    await self._writer.drain()

    def acknowledge(self) -> None:
        """Sends a message without content, also between the parts of another message; never waits.

        Raises:
            OSError: the connection is closed.
        """
        self._write(bytes(_HEAD_BYTES))

    def _write(self, content: bytes) -> None:
        if self._writer.transport.is_closing():  # asyncio would only log, and uvloop raises a RuntimeError
            raise ConnectionResetError("the connection is closed")
        self._writer.write(content)

    def abort(self) -> None:
        """Closes the connection at once, without waiting for the other end. Calling it twice is allowed."""
        self._writer.transport.abort()


@dataclass(slots=True)
class _Guest:
    """A front that has a ticket."""

    ticket: Ticket
    until_s: float
    """Time of the event loop until which the ticket is good."""
    coming: asyncio.Future[Wire]
    wire: Wire | None = None
    """The connection that has shown the ticket: the ticket is good for one."""


class Entrance:
    """Where the fronts of one replica connect. Belongs to one event loop.

    Args:
        host: address to listen on: the one under which other nodes reach this node.
        ports: ports to choose from; empty = fronts use Ray only.
    """

    def __init__(self, host: str, ports: range) -> None:
        self._host = host
        self._ports = ports
        self._server: asyncio.Server | None = None
        self._port = 0
        self._guests: dict[bytes, _Guest] = {}
        self._num_strangers = 0

    async def open(self) -> None:
        """Begins to listen. Without a free port on the address, there are no tickets, and fronts use Ray only."""
        for port in random.sample(self._ports, len(self._ports)):
            with suppress(OSError):
                listener = _listener(self._host, port)
                self._server = await asyncio.start_server(self._greet, sock=listener)
                self._port = listener.getsockname()[1]
                return
        if self._ports:
            logger.warning("no port %s of %s is free: fronts use Ray Serve", _text(self._ports), self._host)

    def ticket(self) -> Ticket | None:
        """A new ticket for one front; None = fronts cannot connect."""
        if self._server is None:
            return None
        ticket = Ticket(self._host, self._port, *(secrets.token_bytes(_SECRET_BYTES) for _ in range(3)))
        loop = asyncio.get_running_loop()
        self._guests[ticket.name] = _Guest(ticket, loop.time() + ATTACH_S, loop.create_future())
        return ticket

    def arrival(self, ticket: Ticket) -> asyncio.Future[Wire]:
        """The connection of the front with this ticket; cancelled when the ticket is forgotten."""
        return self._guests[ticket.name].coming

    def forget(self, ticket: Ticket | None) -> None:
        """Makes a ticket invalid, and closes its connection. May be called twice."""
        guest = None if ticket is None else self._guests.pop(ticket.name, None)
        if guest is not None:
            guest.coming.cancel()
            if guest.wire is not None:
                guest.wire.abort()

    async def close(self) -> None:
        """Stops listening. Calling it twice is allowed."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(reader, writer, max_bytes=2 * _SECRET_BYTES)
        guest = None
        if self._num_strangers < MAX_STRANGERS:
            self._num_strangers += 1
            try:
                guest = await self._recognized(wire)
            finally:
                self._num_strangers -= 1
        if guest is None:
            logger.info("refused a connection from %s without a valid ticket", writer.get_extra_info("peername"))
            wire.abort()
        elif await _is_agreed(wire, guest.ticket) and not guest.coming.done():
            wire.max_bytes = MAX_BYTES
            guest.coming.set_result(wire)
        else:
            wire.abort()

    async def _recognized(self, wire: Wire) -> _Guest | None:
        """The front at the other end, if its first message has the name and the secret of a ticket."""
        said = None
        with suppress(OSError, EOFError):
            async with asyncio.timeout(ATTACH_S):
                said = await wire.read()
        if said is None:
            return None
        guest = self._guests.get(said[:_SECRET_BYTES])
        if guest is None or guest.wire is not None or asyncio.get_running_loop().time() > guest.until_s:
            return None
        if not hmac.compare_digest(said[_SECRET_BYTES:], guest.ticket.secret):
            return None
        guest.wire = wire
        return guest


async def _is_agreed(wire: Wire, ticket: Ticket) -> bool:
    """Sends the proof; returns whether the front has seen it. A front that has given up does not say so."""
    with suppress(OSError, EOFError):
        async with asyncio.timeout(ATTACH_S):
            await wire.send(ticket.proof)
            return await wire.read() == _NOTHING
    return False


def _listener(host: str, port: int) -> socket.socket:
    listener = socket.create_server((host, port), family=_family(host))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)  # accepted sockets inherit it
    return listener


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _text(ports: range) -> str:
    return f"{ports[0]}-{ports[-1]}"


async def carry(session: Session, frames: AsyncGenerator[list[Report], None], wire: Wire) -> None:
    """Connects a replica's session with the wire of its front, until either of them ends."""
    listening = asyncio.ensure_future(_obey_all(session, wire))
    listening.add_done_callback(lambda _done: session.end())
    try:
        async for frame in frames:
            await wire.send(encode(frame))
    except OSError as error:
        logger.info("a front is gone: %s", str(error) or "it takes no reports")
    finally:
        listening.cancel()
        wire.abort()
        await asyncio.gather(listening, return_exceptions=True)


async def _obey_all(session: Session, wire: Wire) -> None:
    try:
        while True:
            content = await wire.read()
            session.obey(decode_orders(content) if content else [])
            wire.acknowledge()
    except (OSError, EOFError, msgspec.MsgspecError) as error:
        logger.info("a front has left: %s", error)


class FrontWire:
    """The front's end of a connection. Belongs to one event loop."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._telling: _Telling | None = None
        """The orders that were sent last."""
        self._is_closed = False

    @classmethod
    async def of(cls, hello: Hello) -> FrontWire | None:
        """Connects to the replica that has sent this report; None = it is not possible, and Ray must be used."""
        ticket = hello.ticket
        if ticket is None:
            return None
        try:
            async with asyncio.timeout(ATTACH_S):
                wire = await _attached(ticket)
            wire.acknowledge()  # from here on the replica may use the connection, so nothing may fail
            return cls(wire)
        except (OSError, EOFError) as error:
            reason = str(error) or "no answer"
            logger.info("messages to the replica at %s port %d go through Ray: %s", ticket.host, ticket.port, reason)
            return None

    async def reports(self) -> AsyncGenerator[list[Report], None]:
        """The replica's reports; an empty list = a part of a long one. Raises LinkBroken when the connection ends."""
        try:
            while True:
                content = await self._wire.read()
                if content is None:
                    yield []
                elif content:
                    yield decode_reports(content)
                elif self._telling is not None:
                    self._telling.note_part()
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            raise LinkBroken("closed the connection") from error
        finally:
            self.close()

    async def tell(self, orders: bytes, on_part: Callable[[], None]) -> None:
        """Sends an encoded list of orders of at most `MAX_BYTES`, one at a time; returns when they have arrived.

        The caller watches how long this takes, as it does with the reports, see `RemoteEngine`.

        Args:
            orders: the encoded list.
            on_part: called when a part of them has arrived.

        Raises:
            LinkBroken: the connection ends.
        """
        if self._is_closed:
            raise LinkBroken("closed the connection")
        telling = self._telling = _Telling(-(-len(orders) // PART_BYTES), on_part)
        try:
            await self._wire.send(orders)
            has_arrived = await telling.arrived
        except OSError as error:
            raise LinkBroken("takes no orders") from error
        if not has_arrived:
            raise LinkBroken("closed the connection")

    def close(self) -> None:
        """Ends the connection, and `tell`. Calling it twice is allowed."""
        self._is_closed = True
        self._wire.abort()
        if self._telling is not None:
            self._telling.give_up()


class _Telling:
    """A list of orders on its way.

    Args:
        num_parts: number of its parts.
        on_part: called when one of them has arrived.
    """

    def __init__(self, num_parts: int, on_part: Callable[[], None]) -> None:
        self._num_parts = num_parts
        self._on_part = on_part
        self.arrived: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Whether all parts have arrived; False = they will not."""

    def note_part(self) -> None:
        self._num_parts -= 1
        self._on_part()
        if self._num_parts == 0 and not self.arrived.done():
            self.arrived.set_result(True)

    def give_up(self) -> None:
        if not self.arrived.done():
            self.arrived.set_result(False)


async def _attached(ticket: Ticket) -> Wire:
    """A connection to a replica that has accepted the ticket. Raises OSError or EOFError if there is none."""
    connected = socket.socket(_family(ticket.host))
    try:
        connected.setblocking(False)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)  # before the window is agreed on
        await asyncio.get_running_loop().sock_connect(connected, (ticket.host, ticket.port))
        reader, writer = await asyncio.open_connection(sock=connected, limit=BUFFER_BYTES)
    except BaseException:
        connected.close()
        raise
    wire = Wire(reader, writer, MAX_BYTES)
    try:
        await wire.send(ticket.name + ticket.secret)
        if not hmac.compare_digest(await wire.read() or _NOTHING, ticket.proof):
            raise OSError("another process listens there")
    except BaseException:
        wire.abort()
        raise
    return wire
