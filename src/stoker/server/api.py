"""Routing of the HTTP server: a decorator declares an endpoint on its handler, and the handler gets a `Call`.

The module is the same for every API; what an endpoint takes and gives is declared where its handler is:

    router = Router(api="Anthropic", error=AnthropicError)

    @router.endpoint("POST", "/v1/messages", "Answers a conversation.", body=MessagesRequest, fields=MESSAGES_FIELDS)
    async def messages(call: Call[MessagesRequest]) -> Response: ...

The Starlette routes, `/openapi.json` and the reference page are all made from the routers.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeAlias, TypedDict, TypeVar, Unpack, cast, overload

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker.chat.thoughts import ThoughtMemory, Thoughts
from stoker.errors import ModelNotLoaded
from stoker.runtime.registry import Lease, Registry, ServedModel
from stoker.server.access.control import check_admin, may_administer, owner_of
from stoker.server.config import ServerConfig
from stoker.server.fields import (
    IGNORED,
    FieldPolicy,
    FieldTable,
    IgnoredFields,
    NestedTables,
    decode_request,
    ignored_fields,
)
from stoker.server.leasing import LEASES
from stoker.server.observe.account import account_of
from stoker.server.observe.response_counts import ROUTE
from stoker.server.request.adapters import check_named
from stoker.server.request.request import Caller
from stoker.server.sessions.names import header_of
from stoker.server.transport.connection import read_body, while_connected
from stoker.server.transport.sse import EventStream
from stoker.text.template_budget import TakesLonger, briefly

_SHORT_BODY = 4096
"""Maximum size, in bytes, of a body that `Call.off_loop_if_long` first tries to handle on the event loop."""

T = TypeVar("T")
P = ParamSpec("P")
BodyT = TypeVar("BodyT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The declaration of one HTTP operation: its path, its request and its replies."""

    api: str
    """Name of the API that the endpoint belongs to, such as `OpenAI`, for documentation."""
    method: str
    path: str
    """Path in Starlette's notation, such as `/v1/responses/{response_id}`."""
    summary: str
    """One line of documentation."""
    aliases: tuple[str, ...] = ()
    """Further paths that call the same handler."""
    request: type[msgspec.Struct] | None = None
    """Type of the JSON body of the request; None = the request has no JSON body."""
    has_optional_body: bool = False
    """Whether a request may omit the body."""
    reads_body: bool = False
    """Whether the handler itself reads the body, which may be larger than `max_body_bytes`."""
    form: type[msgspec.Struct] | None = None
    """Type that describes a `multipart/form-data` body; the handler itself reads the form."""
    fields: FieldTable = field(default_factory=dict[str, FieldPolicy])
    """Policy of each field of the body: honored, refused or ignored."""
    nested: NestedTables = field(default_factory=dict[str, FieldTable])
    """Policies of the fields of objects inside the body."""
    checks_nested: bool = True
    """False: the handler itself applies `nested`, when it reads those objects."""
    query: Mapping[str, type] = field(default_factory=dict[str, type])
    """Query parameters of the URL, with their types."""
    reply: Any = None
    """Type of the JSON reply, or a tuple of types; None = the reply is not JSON."""
    event: Any = None
    """Type of the events of a stream, or a tuple of types; None = the endpoint cannot stream."""
    stream_media: str = "text/event-stream"
    error: Any = None
    """Type of the error bodies; None = OpenAI's shape."""
    is_admin: bool = False
    """The endpoint changes the state of the server, so `check_admin` must allow the client."""

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.aliases)


class Server:
    """The state that all calls of one application share. Belongs to one event loop.

    Args:
        registry: the models.
        config: the settings of the server.
        parts: values that handlers look up by type, see `part`.
    """

    def __init__(self, registry: Registry, config: ServerConfig, parts: Iterable[object] = ()) -> None:
        self.registry = registry
        self.config = config
        self._parts: dict[type, object] = {type(part): part for part in parts}

    def part(self, kind: type[T], make: Callable[[], T]) -> T:
        """The application's single value of this type; the first call creates it with `make`."""
        if kind not in self._parts:
            self._parts[kind] = make()
        return cast("T", self._parts[kind])


@dataclass(frozen=True, slots=True)
class Call(Generic[BodyT]):
    """One request to one endpoint, with everything that its handler needs. The body of the request has been read."""

    server: Server
    request: Request
    body: BodyT
    """The decoded body; the undecoded bytes if the endpoint declares `raw_body`; None if it has no body or reads it."""
    begun_s: float
    """Time at which the route was found, before the body was read, in seconds of `time.monotonic`."""

    @property
    def registry(self) -> Registry:
        return self.server.registry

    @property
    def config(self) -> ServerConfig:
        return self.server.config

    @property
    def query(self) -> QueryParams:
        """The query parameters of the URL."""
        return self.request.query_params

    @property
    def owner(self) -> str:
        """Owner of everything that the server stores for this client; see `access.control.owner_of`."""
        return owner_of(self.request.scope)

    def path_parameter(self, name: str) -> str:
        """The value in the URL's path at the place of `{name}`."""
        return self.request.path_params[name]

    def caller(self, prefix: str, separator: str = "-") -> Caller:
        """The client of the request, and the id of the reply, which also goes into the request's account.

        The id is the prefix with the id of the HTTP request, or with a random id if the client chose the request's id.
        """
        address = self.request.client.host if self.request.client else ""
        account = account_of(self.request.scope)
        account.reply_id = f"{prefix}{separator}{account.own_id or uuid.uuid4().hex}"
        session = account.session = header_of(self.request.headers)
        return Caller(account.reply_id, address, account, self.thoughts, self.owner, session)

    @property
    def thoughts(self) -> Thoughts:
        """The stored reasoning that preceded tool calls of this client."""
        memory = self.server.part(ThoughtMemory, lambda: ThoughtMemory(self.config.max_thought_bytes))
        return Thoughts(memory, self.owner)

    async def lease(self, model: str | None, keep_alive_s: float | None = None) -> ServedModel:
        """The model that answers, loaded first if necessary. It stays loaded until the whole response has been sent.

        Args:
            model: name of the model in the request; None or empty = the request names none.
            keep_alive_s: time for which the model stays loaded afterwards, in seconds; None = unchanged. Ignored unless
                the client may administer the server.

        Raises:
            Cancelled: the client disconnected while the model was loading.
            ModelNotFound: see `check_named`.
            StokerError: see `Registry.lease`.
        """
        if not may_administer(self.request.scope):
            keep_alive_s = None
        lease = self.registry.lease_loaded(model, keep_alive_s=keep_alive_s)
        if lease is None:
            lease = await self.wait(self.registry.lease(model, keep_alive_s=keep_alive_s))
        self.request.scope["state"].setdefault(LEASES, []).append(lease)
        check_named(model, lease.served, takes_any_name=self.registry.takes_any_name)
        return lease.served

    def share_lease(self) -> Lease:
        """A second lease of the model that answers this request, for work that outlives the response."""
        leases: list[Lease] = self.request.scope["state"][LEASES]
        return leases[-1].share()

    def loaded(self, model: str | None) -> ServedModel:
        """The model of this name, for requests that only inspect it: they do not cause it to be loaded.

        Raises:
            ModelNotFound: no model has that name.
            ModelNotLoaded: the model is not loaded.
        """
        status = self.registry.resolve(model)
        if status.served is None:
            raise ModelNotLoaded(f"the model `{status.model_id}` is {status.state}; ask for it, or POST /models/load")
        return status.served

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` until it ends or the client disconnects; see `transport.connection.while_connected`."""
        return await while_connected(self.request.receive, work)

    async def off_loop(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function on another thread, so that it does not block the event loop and other clients' streams.

        Chat templates need this, because they are programs of the model's author, and so do replies with millions of
        numbers.
        """
        return await asyncio.to_thread(function, *args, **kwargs)

    async def off_loop_if_long(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `off_loop`, but a short request whose chat template does little runs on the event loop.

        A thread would cost more than such a call. `function` may be called twice, so it must have no side effects.
        """
        size = self.request.headers.get("content-length", "")
        if size.isdecimal() and int(size) <= _SHORT_BODY:
            with suppress(TakesLonger), briefly():
                return function(*args, **kwargs)
        return await self.off_loop(function, *args, **kwargs)


Handler: TypeAlias = Callable[[Call[BodyT]], Awaitable[Response | EventStream]]


class _Description(TypedDict, total=False):
    aliases: tuple[str, ...]
    fields: FieldTable
    nested: NestedTables
    checks_nested: bool
    query: Mapping[str, type]
    reply: Any
    event: Any
    stream_media: str
    error: Any
    is_admin: bool
    form: type[msgspec.Struct]


class Router:
    """Endpoints of one API, in the order in which they are declared and described.

    Args:
        api: name of the API, for documentation.
        error: type of the endpoints' error bodies; None = OpenAI's shape.
    """

    def __init__(self, api: str, error: Any = None) -> None:
        self._api = api
        self._error = error
        self._handlers: list[tuple[Endpoint, bool, Handler[Any]]] = []
        """Each endpoint, whether its body is decoded before the handler is called, and the handler."""

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        return [endpoint for endpoint, _, _ in self._handlers]

    @overload
    def endpoint(
        self, method: str, path: str, summary: str, *, body: type[BodyT], **description: Unpack[_Description]
    ) -> Callable[[Handler[BodyT]], Handler[BodyT]]: ...

    @overload
    def endpoint(
        self,
        method: str,
        path: str,
        summary: str,
        *,
        raw_body: type[msgspec.Struct],
        has_optional_body: bool = False,
        **description: Unpack[_Description],
    ) -> Callable[[Handler[bytes]], Handler[bytes]]: ...

    @overload
    def endpoint(
        self,
        method: str,
        path: str,
        summary: str,
        *,
        streamed_body: type[msgspec.Struct] | None = None,
        **description: Unpack[_Description],
    ) -> Callable[[Handler[None]], Handler[None]]: ...

    def endpoint(
        self,
        method: str,
        path: str,
        summary: str,
        *,
        body: type[Any] | None = None,
        raw_body: type[msgspec.Struct] | None = None,
        streamed_body: type[msgspec.Struct] | None = None,
        **description: Any,
    ) -> Callable[[Handler[Any]], Handler[Any]]:
        """A decorator that declares the decorated function as the handler of an endpoint.

        Args:
            method: HTTP method.
            path: path in Starlette's notation.
            summary: one line of documentation.
            body: type to which the body is decoded, by the tables `fields` and `nested`.
            raw_body: type that documents the body where the handler itself decodes it.
            streamed_body: type that documents the body where the handler itself reads it from the connection.
            description: the other fields of `Endpoint`.
        """
        about: dict[str, Any] = {"error": self._error, "reads_body": streamed_body is not None, **description}
        taken = next((kind for kind in (body, raw_body, streamed_body) if kind is not None), None)
        endpoint = Endpoint(api=self._api, method=method, path=path, summary=summary, request=taken, **about)

        def declare(handler: Handler[Any]) -> Handler[Any]:
            self._handlers.append((endpoint, body is not None, handler))
            return handler

        return declare

    def routes(self) -> list[Route]:
        """A Starlette route for every path of every endpoint."""
        return [
            Route(path, _answering(*declared), methods=[declared[0].method])
            for declared in self._handlers
            for path in declared[0].paths
        ]


def routes_of(routers: Iterable[Router]) -> list[Route]:
    """The routes of an application. Literal paths come first, because a path with parameters would match them too.

    The handlers expect the application's `Server` as `state.server`.
    """
    routes = [route for router in routers for route in router.routes()]
    return sorted(routes, key=lambda route: "{" in route.path)


def _answering(endpoint: Endpoint, is_decoded: bool, handler: Handler[Any]) -> Callable[[Request], Awaitable[Any]]:
    async def answer(request: Request) -> Any:
        begun_s = time.monotonic()
        server: Server = request.app.state.server
        ignored = IgnoredFields(is_strict=server.config.strict_fields)
        request.scope.setdefault("state", {}).update({ROUTE: endpoint.path, IGNORED: ignored.names})
        ignored_fields.set(ignored)
        if endpoint.is_admin:
            check_admin(request.scope)
        is_read_here = endpoint.request is not None and not endpoint.reads_body
        body = await read_body(request, server.config) if is_read_here else None
        decoded = _decoded(endpoint, body) if body is not None and is_decoded else body
        return await handler(Call(server, request, decoded, begun_s))

    return answer


def _decoded(endpoint: Endpoint, body: bytes) -> Any:
    assert endpoint.request is not None, "only a body that has a type is decoded"
    if endpoint.checks_nested:
        return decode_request(body, endpoint.fields, endpoint.request, endpoint.nested)
    return decode_request(body, endpoint.fields, endpoint.request)
