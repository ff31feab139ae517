"""The direct connection between a front and a replica: it carries what a link carries, and its end ends both sides."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any

import msgspec
import pytest

from stoker.cluster import direct, fleet
from stoker.cluster import session as sessions
from stoker.cluster.direct import BUFFER_BYTES, PART_BYTES, Entrance, FrontWire, Wire, carry
from stoker.cluster.fleet import ClusterFleet
from stoker.cluster.handover import FrontReports, frames_through_ray
from stoker.cluster.messages import Hello, Order, Report, Ticket, encode
from stoker.cluster.remote import LinkBroken, RemoteEngine
from stoker.cluster.session import Session
from stoker.core.params import SamplingParams
from stoker.engine.inbox import InboxLimits
from stoker.engine.protocol import Accepted, Output, Submit, Usage
from stoker.errors import EngineCrashed
from stoker.runtime.base import Runtime
from stoker.runtime.replicas import ReplicatedRuntime
from tests.ports import free_port
from tests.unit.runtime.fake_replica import CARD, FakeReplica
from tests.waiting import BOUND_S, run, until

LONG = "long " * 100_000
HOST = "127.0.0.1"
PORTS = range(32_000, 32_768)
"""Below those that Linux gives to connections, and above those of other tests."""
PAUSE_BYTES = InboxLimits().pause_bytes


@pytest.fixture(autouse=True, params=["asyncio", "uvloop"])
def _loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray runs its actors on uvloop's event loop if uvloop is installed."""
    if request.param == "uvloop":
        uvloop = pytest.importorskip("uvloop")

        def run_on_uvloop(test: Coroutine[Any, Any, None]) -> None:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(test)

        monkeypatch.setattr(asyncio, "run", run_on_uvloop)


class Relay:
    """The network between a front and a replica, which a test can interrupt without closing a connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._passing: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.num_bytes = 0
        """Bytes that have passed from the replica to the front."""

    async def open(self) -> int:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        return self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other, out = await asyncio.open_connection(HOST, self._port)
        self._writers += [writer, out]
        for source, sink, is_back in ((reader, out, 0), (other, writer, 1)):
            self._passing.add(asyncio.ensure_future(self._pass(source, sink, is_back)))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_back: int) -> None:
        with suppress(OSError):
            while True:
                await self.is_open.wait()
                content = await reader.read(2**16)
                await self.is_open.wait()
                if not content:
                    break
                self.num_bytes += is_back * len(content)
                writer.write(content)
                await writer.drain()
        writer.close()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()


class Place:
    """A replica with its entrance, which the tests connect to as a front does. It is the `Link` of that front."""

    def __init__(
        self, runtime: Runtime | None = None, silence_s: float = BOUND_S, *, relays: bool = False, number: int = 0
    ) -> None:
        self.fake = FakeReplica(number, None)
        self.fake.state = "ready"
        self.runtime = runtime or self.fake
        self.entrance = Entrance(HOST, PORTS)
        self.relays = relays
        self.relay: Relay | None = None
        self.is_interrupted = False
        """Whether the network is interrupted when the front connects."""
        self.refusing_port = 0
        """The front connects to this port, where nothing listens; 0 = to that of the replica."""
        self.front = FrontReports()
        self.serving: asyncio.Task[None] | None = None
        """The replica's side."""
        self.remote = RemoteEngine(self, silence_s=silence_s)

    async def __aenter__(self) -> Place:
        await self.entrance.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.remote.close()
        if self.serving is not None:
            self.serving.cancel()
            await asyncio.gather(self.serving, return_exceptions=True)
        await self.entrance.close()
        if self.relay is not None:
            await self.relay.close()
        await until(lambda: not self.fake.open)

    async def start(self) -> FrontWire:
        """Connects the front, and returns its direct connection when this carries the messages."""
        assert await self.remote.start() == CARD
        await until(lambda: self.front.wire is not None)
        assert self.front.wire is not None
        return self.front.wire

    async def _serve(self, ticket: Ticket, through_ray: asyncio.Queue[list[Report]]) -> None:
        self.session = Session(self.runtime, HOST, ticket=ticket)
        try:
            async with aclosing(frames_through_ray(self.session, self.entrance, ticket)) as frames:
                async for frame in frames:
                    through_ray.put_nowait(frame)
        finally:
            self.entrance.forget(ticket)

    async def _through_ray(self) -> AsyncGenerator[list[Report], None]:
        ticket = self.entrance.ticket()
        assert ticket is not None
        frames: asyncio.Queue[list[Report]] = asyncio.Queue()
        self.serving = asyncio.ensure_future(self._serve(ticket, frames))
        while True:
            frame = await frames.get()
            if isinstance(hello := frame[0], Hello):
                way = msgspec.structs.replace(ticket, port=await self._port(ticket.port))
                frame[0] = msgspec.structs.replace(hello, ticket=way)
            yield frame

    async def _port(self, port: int) -> int:
        """The port that the front connects to."""
        if not self.relays:
            return self.refusing_port or port
        self.relay = Relay(port)
        if self.is_interrupted:
            self.relay.is_open.clear()
        return await self.relay.open()

    async def reports(self) -> AsyncGenerator[list[Report], None]:
        async with aclosing(self._through_ray()) as frames, aclosing(self.front.all_of(frames)) as reports:
            async for frame in reports:
                yield frame

    async def tell(self, orders: list[Order], on_part: Callable[[], None]) -> None:
        if self.front.wire is not None:
            await self.front.wire.tell(encode(orders), on_part)
        else:
            self.session.take(encode(orders), has_more=False)


def submit(request_id: str, prompt: str = "hello") -> Submit:
    return Submit(request_id, prompt, SamplingParams(max_tokens=5))


async def answer(runtime: Runtime, given: Submit) -> str:
    events = [event async for event in runtime.generate(given)]
    return "".join(event.text for event in events if isinstance(event, Output))


async def is_answered(place: Place, *request_ids: str) -> None:
    """Asks one request after the other."""
    for request_id in request_ids:
        asked = asyncio.ensure_future(answer(place.remote, submit(request_id)))
        await until(lambda request_id=request_id: request_id in place.fake.open)
        place.fake.finish(request_id)
        assert await asked == "by 0"


def test_no_message_waits_for_a_connection_that_is_refused_or_slow() -> None:
    async def test() -> None:
        async with Place() as place:
            place.refusing_port = free_port()
            await place.remote.start()
            await is_answered(place, "a", "b")
            assert place.front.wire is None
        async with Place(relays=True) as place:
            place.is_interrupted = True
            await place.remote.start()
            await is_answered(place, "a", "b")
            assert place.relay is not None
            place.relay.is_open.set()
            await place.start()
            assert place.relay.num_bytes
            await is_answered(place, "c")

    run(test())


def test_front_that_gives_up_when_the_replica_has_accepted_it_keeps_its_session() -> None:
    async def test() -> None:
        async with Place() as place:
            place.refusing_port = free_port()
            await place.remote.start()
            ticket = next(guest.ticket for guest in place.entrance._guests.values())
            reader, writer = await asyncio.open_connection(HOST, ticket.port)
            writer.write(said(ticket.name, ticket.secret))
            assert await reader.readexactly(20) == said(ticket.proof)
            await is_answered(place, "a")
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            await is_answered(place, "b")
            assert not place.remote.is_lost

    run(test())


def test_reports_keep_their_order_when_they_move_to_the_connection() -> None:
    async def test() -> None:
        async with Place(relays=True) as place:
            place.is_interrupted = True
            await place.remote.start()
            events = place.remote.generate(submit("r"))
            await anext(events)
            place.fake.say("r", "first ")
            assert place.relay is not None
            place.relay.is_open.set()
            num_said = 0
            while place.front.wire is None:
                place.fake.say("r", f"{num_said} ")
                num_said += 1
                await asyncio.sleep(0)
            place.fake.say("r", "end", "stop")
            texts = [event.text async for event in events if isinstance(event, Output)]
            assert "".join(texts) == " ".join(["first", *map(str, range(num_said)), "end"])

    run(test())


def test_each_part_of_orders_that_arrives_is_noted() -> None:
    async def test() -> None:
        async with Place() as place:
            wire = await place.start()
            parts: list[int] = []
            await wire.tell(encode([submit("long", "x" * (3 * PART_BYTES))]), lambda: parts.append(1))
            assert len(parts) == 4
            await until(lambda: "long" in place.fake.open)
            await wire.tell(encode([]), lambda: parts.append(1))
            assert len(parts) == 5

    run(test())


def test_requests_and_answers_of_any_size_pass() -> None:
    async def test() -> None:
        async with Place() as place:
            await place.start()
            asked = [asyncio.ensure_future(answer(place.remote, submit(str(number), LONG))) for number in range(5)]
            for number in range(5):
                await until(lambda number=number: str(number) in place.fake.open)
                place.fake.say(str(number), LONG)
                place.fake.finish(str(number))
            assert await asyncio.gather(*asked) == [LONG + "by 0"] * 5
            assert {each.prompt for each in place.fake.submits} == {LONG}

    run(test())


def test_front_that_leaves_has_its_requests_aborted() -> None:
    async def test() -> None:
        async with Place() as place:
            wire = await place.start()
            events = place.remote.generate(submit("r"))
            await anext(events)
            assert place.fake.open
            wire.close()
            await until(lambda: not place.fake.open)
            with pytest.raises(LinkBroken):
                await wire.tell(encode([]), lambda: None)
            await events.aclose()

    run(test())


def test_replica_that_goes_ends_its_requests_at_once() -> None:
    async def test() -> None:
        async with Place() as place:
            await place.start()
            events = place.remote.generate(submit("r"))
            await anext(events)
            assert place.serving is not None
            place.serving.cancel()
            with pytest.raises(EngineCrashed, match="closed the connection"):
                await anext(events)
            assert place.remote.is_lost

    run(test())


def test_when_a_connection_breaks_what_has_begun_fails_and_what_has_not_goes_to_another_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet, "CHECK_S", 0.005)

    async def test() -> None:
        async with Place(number=0) as first, Place(number=1) as second:
            places = {"a": first, "b": second}
            present = {"a"}
            runtime = ReplicatedRuntime(ClusterFleet(lambda: present, lambda name: places[name].remote))
            await runtime.start()
            wire = await first.start()
            begun = runtime.generate(submit("begun"))
            await anext(begun)
            first.fake.say("begun")
            assert isinstance(await anext(begun), Output)
            first.fake.accept_gate.clear()
            waiting = asyncio.ensure_future(answer(runtime, submit("waiting")))
            await until(lambda: "waiting" in first.fake.open)
            present.add("b")
            await until(lambda: second.remote.health().is_ready)
            present.remove("a")
            wire.close()
            with pytest.raises(EngineCrashed):
                await anext(begun)
            await until(lambda: "waiting" in second.fake.open)
            second.fake.finish("waiting")
            assert await waiting == "by 1"
            await until(lambda: not first.fake.open)
            await runtime.close()

    run(test())


@pytest.mark.parametrize("side", ["front", "replica"])
def test_connection_that_falls_silent_is_given_up_by_both_sides(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is closed, as when a cable is pulled: heartbeats do not arrive."""
    monkeypatch.setattr(sessions, "BEAT_S", 0.01)
    monkeypatch.setattr(sessions, "PATIENCE_S", 0.2 if side == "replica" else BOUND_S)

    async def test() -> None:
        async with Place(silence_s=0.2 if side == "front" else BOUND_S, relays=True) as place:
            await place.start()
            events = place.remote.generate(submit("r"))
            await anext(events)
            assert place.relay is not None
            place.relay.is_open.clear()
            if side == "front":
                with pytest.raises(EngineCrashed, match=r"for 0\.2 s"):
                    await anext(events)
            else:
                await until(lambda: not place.fake.open)
            place.relay.is_open.set()
            await events.aclose()

    run(test())


def test_orders_that_wait_for_their_arrival_fail_with_the_connection() -> None:
    async def test() -> None:
        async with Place() as place:
            wire = await place.start()
            telling = asyncio.ensure_future(wire.tell(encode([]), lambda: None))
            await asyncio.sleep(0)
            wire.close()
            with pytest.raises(LinkBroken):
                await telling

    run(test())


def said(*parts: bytes) -> bytes:
    content = b"".join(parts)
    return len(content).to_bytes(4, "little") + content


async def is_refused(port: int, content: bytes) -> bool:
    """Whether the replica closes a connection that begins so, without a word."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(content)
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


@pytest.mark.parametrize(
    "content",
    [
        lambda _ticket: said(b"guess"),
        lambda ticket: said(ticket.name, bytes(16)),
        lambda ticket: said(ticket.name, ticket.proof),
        lambda ticket: said(bytes(16), ticket.secret),
        lambda ticket: said(ticket.name, ticket.secret, b"more"),
        lambda _ticket: b"\xff\xff\xff\x7f" + b"x" * 99,
        lambda _ticket: b"\0\0\0\0",
        lambda _ticket: b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["short", "no secret", "the proof", "another name", "too long", "huge", "empty", "another protocol"],
)
def test_connection_without_the_secret_of_a_ticket_is_closed(content: Callable[[Ticket], bytes]) -> None:
    async def test() -> None:
        async with Place() as place:
            ticket = place.entrance.ticket()
            assert ticket is not None
            assert await is_refused(ticket.port, content(ticket))
            coming = place.entrance.arrival(ticket)
            wire = await FrontWire.of(Hello(CARD, "", ticket=ticket))
            assert wire is not None, "the ticket is still good"
            wire.close()
            found = await coming
            assert isinstance(found, Wire)
            found.abort()

    run(test())


def test_only_few_clients_without_a_ticket_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "MAX_STRANGERS", 2)
    monkeypatch.setattr(direct, "ATTACH_S", BOUND_S)

    async def test() -> None:
        async with Place() as place:
            ticket = place.entrance.ticket()
            assert ticket is not None
            silent = [await asyncio.open_connection(HOST, ticket.port) for _ in range(2)]
            assert await is_refused(ticket.port, said(ticket.name, ticket.secret)), "one too many"
            for _, writer in silent:
                writer.transport.abort()
            await until(lambda: not place.entrance._num_strangers)

    run(test())


def test_client_that_says_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "ATTACH_S", 0.01)

    async def test() -> None:
        async with Place() as place:
            ticket = place.entrance.ticket()
            assert ticket is not None
            assert await is_refused(ticket.port, b"")

    run(test())


def test_ticket_is_good_for_one_connection_and_until_it_is_forgotten() -> None:
    async def test() -> None:
        async with Place() as place:
            ticket = place.entrance.ticket()
            assert ticket is not None
            coming = place.entrance.arrival(ticket)
            first = await FrontWire.of(Hello(CARD, "", ticket=ticket))
            assert first is not None
            wire = await coming
            assert isinstance(wire, Wire)
            assert await is_refused(ticket.port, said(ticket.name, ticket.secret)), "used"
            first.close()
            wire.abort()
            other = place.entrance.ticket()
            assert other is not None
            place.entrance.forget(other)
            assert await is_refused(other.port, said(other.name, other.secret)), "forgotten"

    run(test())


def test_front_may_connect_before_its_replica_waits_for_it() -> None:
    async def test() -> None:
        async with Place() as place:
            early, unused = place.entrance.ticket(), place.entrance.ticket()
            assert early is not None
            assert unused is not None
            first = await FrontWire.of(Hello(CARD, "", ticket=early))
            assert first is not None
            assert await is_refused(early.port, said(early.name, early.secret)), "used"
            wire = await place.entrance.arrival(early)
            assert isinstance(wire, Wire)
            first.close()
            wire.abort()
            second = await FrontWire.of(Hello(CARD, "", ticket=unused))
            assert second is not None
            place.entrance.forget(unused)
            with pytest.raises(LinkBroken):
                await asyncio.wait_for(anext(second.reports()), BOUND_S)

    run(test())


def test_front_sends_nothing_more_to_a_process_that_does_not_know_the_proof() -> None:
    async def test() -> None:
        heard = bytearray()

        async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.extend(await reader.readexactly(36))
            writer.write(said(bytes(16)))
            heard.extend(await reader.read())
            writer.close()

        server = await asyncio.start_server(pretend, HOST, 0)
        ticket = Ticket(HOST, server.sockets[0].getsockname()[1], b"n" * 16, b"s" * 16, b"p" * 16)
        assert await FrontWire.of(Hello(CARD, "", ticket=ticket)) is None
        await until(lambda: len(heard) >= 36)
        assert bytes(heard) == said(ticket.name, ticket.secret)
        server.close()

    run(test())


def test_without_a_connection_both_sides_go_on_through_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "ATTACH_S", 0.01)

    async def test() -> None:
        closed = Entrance(HOST, range(0))
        await closed.open()
        assert closed.ticket() is None
        assert await FrontWire.of(Hello(CARD, "")) is None
        async with Place() as place:
            ticket = place.entrance.ticket()
            assert ticket is not None
            loop = asyncio.get_running_loop()
            late_s = loop.time() + 2 * direct.ATTACH_S
            await until(lambda: loop.time() > late_s)
            assert await FrontWire.of(Hello(CARD, "", ticket=ticket)) is None, "it is too late"
            await place.entrance.close()
            assert await FrontWire.of(Hello(CARD, "", ticket=ticket)) is None

    run(test())


def test_front_waits_a_short_time_for_a_process_that_accepts_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "ATTACH_S", 0.05)

    async def test() -> None:
        with socket.create_server((HOST, 0)) as mute:
            ticket = Ticket(HOST, mute.getsockname()[1], b"n" * 16, b"s" * 16, b"p" * 16)
            assert await FrontWire.of(Hello(CARD, "", ticket=ticket)) is None

    run(test())


def test_replica_takes_a_free_port_of_the_range_on_the_address_of_its_node_or_none() -> None:
    async def test() -> None:
        port = free_port()
        first, second, elsewhere = (Entrance(host, range(port, port + 1)) for host in (HOST, HOST, "192.0.2.1"))
        for entrance in (first, second, elsewhere):
            await entrance.open()
        ticket = first.ticket()
        assert ticket is not None
        assert (ticket.host, ticket.port) == (HOST, port)
        assert second.ticket() is None, "the port is taken"
        assert elsewhere.ticket() is None, "the address is none of this machine"
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.2", ticket.port)
        await first.close()
        await second.open()
        ticket = second.ticket()
        assert ticket is not None
        assert ticket.port == port
        await second.close()

    run(test())


async def pair(max_bytes: int = 2**20) -> tuple[Wire, Wire, asyncio.Server]:
    """Both ends of a connection."""
    ends: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    server = await asyncio.start_server(lambda *end: ends.put_nowait(end), HOST, 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    far_reader, far_writer = await ends.get()
    return Wire(reader, writer, max_bytes), Wire(far_reader, far_writer, max_bytes), server


def test_long_message_arrives_in_parts_between_which_there_are_acknowledgments() -> None:
    async def test() -> None:
        near, far, server = await pair()
        content = bytes(range(256)) * 1024
        sending = asyncio.ensure_future(near.send(content))
        found: list[bytes | None] = [await far.read()]
        near.acknowledge()
        while found[-1] in (None, b""):
            found.append(await far.read())
        await sending
        assert found[-1] == content
        assert found.count(None) == len(content) // PART_BYTES - 1
        if b"" not in found:
            assert await far.read() == b""
        await near.send(b"short")
        assert await far.read() == b"short"
        near.abort()
        with pytest.raises((OSError, EOFError)):
            await far.read()
        with pytest.raises(ConnectionResetError):
            near.acknowledge()
        with pytest.raises(ConnectionResetError):
            await near.send(b"")
        far.abort()
        server.close()

    run(test())


@pytest.mark.parametrize(
    ("size", "parts"), [(PART_BYTES + 1, 1), (PART_BYTES, 5)], ids=["a part is too long", "the message is too long"]
)
def test_messages_have_a_maximum_size(size: int, parts: int) -> None:
    async def test() -> None:
        near, far, server = await pair(max_bytes=4 * PART_BYTES)
        for _ in range(parts):
            near._writer.write((size | 2**31).to_bytes(4, "little") + bytes(size))
        for _ in range(parts - 1):
            assert await far.read() is None
        with pytest.raises(OSError, match="a message has more than"):
            await far.read()
        for wire in (near, far):
            wire.abort()
        server.close()

    run(test())


class Endless:
    """The runtime of an engine that is faster than any reader, and says how much it has made."""

    def __init__(self) -> None:
        self.num_bytes = 0

    async def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        yield Accepted(submit.request_id, 1)
        while True:
            output = Output(submit.request_id, "word " * 100, [1], Usage(1, 1, 0))
            self.num_bytes += len(encode([output]))
            yield output
            await asyncio.sleep(0)


class EndlessReplica(FakeReplica):
    """A replica with that engine."""

    def __init__(self) -> None:
        super().__init__(0, None)
        self.state = "ready"
        self.engine = Endless()

    def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        return self.engine.generate(submit)


async def settled(made: Callable[[], int]) -> int:
    """What was made when no more is made, although there was time for it."""
    last, same = -1, 0
    while same < 50:
        await asyncio.sleep(0.005)
        same, last = (same + 1 if made() == last else 0), made()
    return last


def test_little_lies_between_an_engine_and_a_reader_that_takes_nothing() -> None:
    """What the engine's own inbox holds comes on top: as much as that of the front."""

    async def test() -> None:
        replica = EndlessReplica()
        async with Place(replica) as place:
            await place.start()
            events = place.remote.generate(submit("slow"))
            for _ in range(3):
                await anext(events)
            made = await settled(lambda: replica.engine.num_bytes)
            assert 0 < made < PAUSE_BYTES
            other = place.remote.generate(submit("quick"))
            for _ in range(1000):
                await anext(other)
            await other.aclose()
            await events.aclose()

    run(test())


def test_little_lies_between_an_engine_and_a_front_that_stands_still() -> None:
    async def test() -> None:
        replica = EndlessReplica()
        async with Place(replica) as place:
            ticket = place.entrance.ticket()
            assert ticket is not None
            session = Session(replica, HOST, ticket=ticket)
            frames = session.frames()
            await anext(frames)
            coming = place.entrance.arrival(ticket)
            front = await FrontWire.of(Hello(CARD, "", ticket=ticket))
            wire = await coming
            assert front is not None
            assert wire is not None
            carrying = asyncio.ensure_future(carry(session, frames, wire))
            session.obey([submit("r")])
            made = await settled(lambda: replica.engine.num_bytes)
            assert BUFFER_BYTES < made < PAUSE_BYTES
            front.close()
            await carrying
            await frames.aclose()

    run(test())


def test_front_that_reads_nothing_does_not_hold_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "PATIENCE_S", 0.05)

    async def test() -> None:
        async with Place() as place:
            ticket = place.entrance.ticket()
            assert ticket is not None
            session = Session(place.fake, HOST, ticket=ticket)
            frames = session.frames()
            await anext(frames)
            _, writer = await asyncio.open_connection(HOST, ticket.port, limit=1)
            writer.write(said(ticket.name, ticket.secret) + said())
            wire = await place.entrance.arrival(ticket)
            assert wire is not None
            carrying = asyncio.ensure_future(carry(session, frames, wire))
            session.obey([submit("r")])
            await until(lambda: "r" in place.fake.open)
            for _ in range(40):
                place.fake.say("r", LONG)
            await carrying
            await frames.aclose()
            assert not place.fake.open
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

    run(test())
