"""The Ray Serve deployment of fronts, which serve HTTP: the application of `stoker serve`, with models in replicas.

A front connects to each replica of an engine deployment through a handle of Ray Serve.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from stoker.cluster.actor_log import log_to_stderr
from stoker.cluster.config import ClusterConfig, EngineSpec
from stoker.cluster.direct import MAX_BYTES
from stoker.cluster.directory import DIRECTORY
from stoker.cluster.fleet import ClusterFleet, Idle
from stoker.cluster.front_counts import FrontCounts
from stoker.cluster.handover import FrontReports
from stoker.cluster.messages import Order, Report, decode_reports, encode
from stoker.cluster.remote import LinkBroken, RemoteEngine
from stoker.cluster.untyped import serve
from stoker.errors import StokerError
from stoker.runtime.registry import Registry
from stoker.runtime.replicas import ReplicatedRuntime
from stoker.runtime.served import ServedModel
from stoker.server.transport.connection import STOP, Stop
from stoker.text.volatile import VolatileHeaders

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

logger = logging.getLogger(__name__)


class Front:
    """One front. Its application is `front_app`, which Ray Serve makes on the node where the front runs."""

    def __init__(self, cluster: ClusterConfig, *engines: Any) -> None:
        """Does nothing: the handles `engines` make Ray Serve deploy the engines first; `front_app` gets its own."""

    async def drain(self) -> None:
        """Prepares the shutdown: streams that still run after `drain_s` seconds end with an error event."""
        for life in _LIVES:
            life.drain()

    async def counts(self) -> bytes:
        """This front's metrics, see `FrontCounts.told`."""
        return _LIVES[0].counts.told()


def front_app(cluster: ClusterConfig) -> Callable[[], ASGIApp]:
    """A function that makes the ASGI application of a front, on the node where it runs."""

    def make() -> ASGIApp:
        from stoker.server.transport.app import create_app

        log_to_stderr()
        config = cluster.of_fronts()
        registry = Registry([], config.registry, strict=config.server.strict_models)
        handles = [serve.get_deployment_handle(spec.deployment, cluster.name) for spec in cluster.engines()]
        volatile = VolatileHeaders(config.server.volatile_headers)
        for spec, handle in zip(cluster.engines(), handles, strict=True):
            registry.adopt(ServedModel(spec.names, _runtime(spec, handle, volatile)))
        fronts = serve.get_deployment_handle("front", cluster.name)
        counts = FrontCounts(_own_name(cluster), registry, partial(_all_counts, fronts))
        app = create_app(registry, config.server, parts=[counts.fronts, counts.responses])
        return _WithLife(app, _Life(registry, handles, config.server.drain_s, counts))

    return make


def _own_name(cluster: ClusterConfig) -> str:
    """The name of this front among several; a single front needs none."""
    return str(serve.get_replica_context().replica_id.unique_id) if cluster.fronts > 1 else ""


async def _all_counts(fronts: Any) -> list[bytes]:
    """The metrics of all fronts.

    Args:
        fronts: the handle of the fronts' deployment. The caller keeps it, because a new handle knows no front yet.

    Raises:
        RuntimeError: Ray cannot reach the fronts.
    """
    try:
        return await fronts.broadcast("counts").results_async()
    except BROKEN as error:
        raise RuntimeError(str(error)) from error


def _runtime(spec: EngineSpec, handle: Any, volatile: VolatileHeaders) -> ReplicatedRuntime:
    def connect(replica_id: str) -> RemoteEngine:
        return RemoteEngine(ServeLink(handle, replica_id), volatile)

    config = spec.cluster.load()
    idle = None
    if config.replicas.min_replicas == 0:
        wait = config.registry
        idle = Idle(wake=partial(watch, handle), wait_s=wait.load_wait_s, max_waiting=wait.max_load_queue)
    fleet = ClusterFleet(lambda: DIRECTORY.present(spec.deployment), connect, idle=idle)
    return ReplicatedRuntime(fleet, restart_wait_s=config.supervision.restart_wait_s)


_READY_S = 300.0
"""Seconds that a new front waits for its models. Afterwards it takes requests, and answers them with status 503."""
_LIVES: list[_Life] = []
"""The lives of the fronts in this process."""


class _Life:
    """Starts and ends one front's models. Serve sends requests when the models are ready, or after `_READY_S`."""

    def __init__(self, registry: Registry, handles: list[Any], drain_s: float, counts: FrontCounts) -> None:
        self._registry = registry
        self._handles = handles
        self._drain_s = drain_s
        self.counts = counts
        self._tasks: list[asyncio.Task[None]] = []
        self.stop = Stop()

    async def begin(self) -> None:
        self._tasks = [asyncio.ensure_future(watch(handle)) for handle in self._handles]
        loading = asyncio.ensure_future(self._load())
        self._tasks.append(loading)
        _LIVES.append(self)
        await asyncio.wait([loading], timeout=_READY_S)

    def drain(self) -> None:
        self.stop.set()
        self._registry.events.close()  # ends the streams of clients that follow events
        self._tasks.append(asyncio.ensure_future(self._cut_off()))

    async def end(self) -> None:
        """Ends the front; Ray Serve calls this when the front is drained, or after Serve's timeout."""
        _LIVES.remove(self)
        self.stop.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._registry.close()

    async def _cut_off(self) -> None:
        await asyncio.sleep(self._drain_s)
        await self._registry.close()

    async def _load(self) -> None:
        while True:
            try:
                return await self._registry.start()
            except StokerError as error:
                logger.error("the models cannot be reached, and are looked for again: %s", error.message)


class _WithLife:
    """Adds ASGI's lifespan, by which Ray Serve starts and stops an application. `stoker serve` does not use it."""

    def __init__(self, app: ASGIApp, life: _Life) -> None:
        self._app = app
        self._life = life

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _tell(self._life.begin, self._life.end, receive, send)
            return
        scope.setdefault("state", {})[STOP] = self._life.stop
        await self._app(scope, receive, send)


async def _tell(
    begin: Callable[[], Awaitable[None]], end: Callable[[], Awaitable[None]], receive: Receive, send: Send
) -> None:
    while True:
        kind = (await receive())["type"]
        await (begin if kind == "lifespan.startup" else end)()
        await send({"type": f"{kind}.complete"})
        if kind == "lifespan.shutdown":
            return


BROKEN = (RayError, RayServeException, LookupError, RuntimeError, OSError, grpc.RpcError)
"""Errors that Ray raises when a replica cannot be reached, or has just ended."""


CALL_BYTES = 2**20
"""Maximum size of orders in one call through Ray Serve. A call that ends shows that the replica takes orders."""


class ServeLink:
    """The `Link` to one replica. Belongs to one event loop.

    Args:
        handle: handle of the engine deployment, whose router is `DirectedRouter`.
        replica_id: id of the replica.
    """

    def __init__(self, handle: Any, replica_id: str) -> None:
        self._handle = handle
        self._tell = handle.tell  # kept, because each attribute access on a handle makes another handle
        self._replica_id = replica_id
        self._session = uuid.uuid4().hex
        self._reports = FrontReports()

    async def reports(self) -> AsyncGenerator[list[Report], None]:
        """See `Link`."""
        DIRECTORY.hold(self._replica_id)
        try:
            response = self._handle.options(stream=True).connect.remote(self._session, to=self._replica_id)
            try:
                async with aclosing(_decoded(response)) as frames, aclosing(self._reports.all_of(frames)) as reports:
                    async for frame in reports:
                        yield frame
            finally:
                response.cancel()
        except BROKEN as error:
            raise LinkBroken(_reason(error)) from error
        finally:
            DIRECTORY.release(self._replica_id)

    async def tell(self, orders: list[Order], on_part: Callable[[], None]) -> None:
        """See `Link`."""
        encoded = encode(orders)
        if (wire := self._reports.wire) is not None and len(encoded) <= MAX_BYTES:
            await wire.tell(encoded, on_part)
            return
        for start in range(0, len(encoded), CALL_BYTES):
            await self._tell_part(encoded[start : start + CALL_BYTES], has_more=start + CALL_BYTES < len(encoded))
            on_part()

    async def _tell_part(self, part: bytes, *, has_more: bool) -> None:
        try:
            is_known = await self._tell.remote(self._session, part, to=self._replica_id, has_more=has_more)
        except BROKEN as error:
            raise LinkBroken(_reason(error)) from error
        if not is_known:
            raise LinkBroken("does not know this front any more")


async def _decoded(response: Any) -> AsyncGenerator[list[Report], None]:
    async for raw in response:
        yield decode_reports(raw)


async def watch(handle: Any) -> None:
    """Makes the handle's router list the replicas from now on. Returns when there is a replica.

    If Ray Serve has scaled the deployment to zero, it starts a replica, because it counts the call that waits here.
    """
    response = handle.connect.remote("", to="")
    try:
        await response
    except asyncio.CancelledError:
        response.cancel()
        raise
    except BROKEN as error:
        logger.info("the router is there: %s", _reason(error))


def _reason(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"broke off: {type(error).__name__}" + (f" ({text[0][:200]})" if text else "")
