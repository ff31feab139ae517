"""An endpoint is declared on its handler, and a handler is given a `Call`. It knows no API.

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
from stoker.runtime.registry import Lease, Registry, ServedModel
from stoker.server.access.control import check_admin, owner_of
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
from stoker.server.leasing import leased, loaded, shared_lease
from stoker.server.observe.account import account_of
from stoker.server.observe.response_counts import ROUTE
from stoker.server.request.request import Caller
from stoker.server.sessions.names import header_of
from stoker.server.transport.connection import read_body, while_connected
from stoker.server.transport.sse import EventStream
from stoker.text.template_budget import TakesLonger, briefly

_SHORT_BODY = 4096
"""Bytes."""

T = TypeVar("T")
P = ParamSpec("P")
BodyT = TypeVar("BodyT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One operation of the HTTP surface: what it takes and what it gives."""

    api: str
    """Whose API it belongs to, for people."""
    method: str
    path: str
    """As Starlette spells it, such as `/v1/responses/{response_id}`."""
    summary: str
    """One line for people."""
    aliases: tuple[str, ...] = ()
    """Further paths that mean the same."""
    request: type[msgspec.Struct] | None = None
    """The type of its body; None = it has none."""
    has_optional_body: bool = False
    """The body may be missing."""
    form: type[msgspec.Struct] | None = None
    """What its body is as a form (`multipart/form-data`), which the handler reads by itself."""
    fields: FieldTable = field(default_factory=dict[str, FieldPolicy])
    """What becomes of the fields of its body."""
    nested: NestedTables = field(default_factory=dict[str, FieldTable])
    """What becomes of the fields of objects inside its body."""
    checks_nested: bool = True
    """False: the handler itself applies `nested`, when it reads those objects."""
    query: Mapping[str, type] = field(default_factory=dict[str, type])
    """Parameters behind the question mark."""
    reply: Any = None
    """The type of its JSON reply, or a tuple of types; None = it is not JSON."""
    event: Any = None
    """The type of what a stream consists of, or a tuple of types; None = it cannot stream."""
    stream_media: str = "text/event-stream"
    error: Any = None
    """The type of its errors; None = those of OpenAI's shape."""
    is_admin: bool = False
    """It changes what the server holds: it takes the admin key, if there is one."""

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path, *self.aliases)


class Server:
    """What all calls of one application share. Belongs to one event loop.

    Args:
        registry: the models.
        config: all bounds.
        parts: values that handlers ask for by type, see `part`.
    """

    def __init__(self, registry: Registry, config: ServerConfig, parts: Iterable[object] = ()) -> None:
        self.registry = registry
        self.config = config
        self._parts: dict[type, object] = {type(part): part for part in parts}

    def part(self, kind: type[T], make: Callable[[], T]) -> T:
        """The one value of this type; it is made when it is first asked for."""
        if kind not in self._parts:
            self._parts[kind] = make()
        return cast("T", self._parts[kind])


@dataclass(frozen=True, slots=True)
class Call(Generic[BodyT]):
    """One request to one endpoint, whose body has been read, and what its handler needs to answer."""

    server: Server
    request: Request
    body: BodyT
    """Decoded; the bytes themselves if the endpoint says `raw_body`; None if it has no body."""
    begun_s: float
    """When the handler was found, before the body was read, on the clock of `time.monotonic`."""

    @property
    def registry(self) -> Registry:
        return self.server.registry

    @property
    def config(self) -> ServerConfig:
        return self.server.config

    @property
    def query(self) -> QueryParams:
        """What stands behind the question mark."""
        return self.request.query_params

    @property
    def owner(self) -> str:
        """See `access.control.owner_of`."""
        return owner_of(self.request.scope)

    def path_parameter(self, name: str) -> str:
        """What stands in the path where the endpoint has `{name}`."""
        return self.request.path_params[name]

    def caller(self, prefix: str, separator: str = "-") -> Caller:
        """Who asks, and the id of the reply: that of the HTTP request behind a prefix, unless the client chose that."""
        address = self.request.client.host if self.request.client else ""
        account = account_of(self.request.scope)
        account.reply_id = f"{prefix}{separator}{account.own_id or uuid.uuid4().hex}"
        session = account.session = header_of(self.request.headers)
        return Caller(account.reply_id, address, account, self.thoughts, self.owner, session)

    @property
    def thoughts(self) -> Thoughts:
        """Reasoning that preceded tool calls of this client."""
        memory = self.server.part(ThoughtMemory, lambda: ThoughtMemory(self.config.max_thought_bytes))
        return Thoughts(memory, self.owner)

    async def lease(self, model: str | None, keep_alive_s: float | None = None) -> ServedModel:
        """The model that answers, loaded first if need be; see `leasing.leased`."""
        return await leased(self.request, self.registry, model, keep_alive_s)

    def share_lease(self) -> Lease:
        """See `leasing.shared_lease`."""
        return shared_lease(self.request)

    def loaded(self, model: str | None) -> ServedModel:
        """The model that a look at it means; see `leasing.loaded`."""
        return loaded(self.registry, model)

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` as long as the client is there; see `transport.connection.while_connected`."""
        return await while_connected(self.request.receive, work)

    async def off_loop(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function that computes or reads files for longer than the streams of other requests may wait.

        Chat templates do, as they are programs of the model's author, and so do replies of millions of numbers.
        """
        return await asyncio.to_thread(function, *args, **kwargs)

    async def off_loop_if_long(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `off_loop`. A short request is handled at once if its template does little: a thread would cost more.

        `function` may be called twice, so it must change nothing.
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
        api: whose it is, for people.
        error: the type of their errors; None = those of OpenAI's shape.
    """

    def __init__(self, api: str, error: Any = None) -> None:
        self._api = api
        self._error = error
        self._handlers: list[tuple[Endpoint, bool, Handler[Any]]] = []
        """With whether the body is decoded for the handler."""

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
        self, method: str, path: str, summary: str, **description: Unpack[_Description]
    ) -> Callable[[Handler[None]], Handler[None]]: ...

    def endpoint(
        self,
        method: str,
        path: str,
        summary: str,
        *,
        body: type[Any] | None = None,
        raw_body: type[msgspec.Struct] | None = None,
        **description: Any,
    ) -> Callable[[Handler[Any]], Handler[Any]]:
        """Declares the handler that it decorates. See `Endpoint` for the description.

        Args:
            method: of HTTP.
            path: as Starlette spells it.
            summary: one line for people.
            body: what the body is decoded to, by `fields` and `nested`.
            raw_body: what the body is described as where the handler decodes it.
            description: the other fields of `Endpoint`.
        """
        about: dict[str, Any] = {"error": self._error, **description}
        taken = raw_body if body is None else body
        endpoint = Endpoint(api=self._api, method=method, path=path, summary=summary, request=taken, **about)

        def declare(handler: Handler[Any]) -> Handler[Any]:
            self._handlers.append((endpoint, body is not None, handler))
            return handler

        return declare

    def routes(self) -> list[Route]:
        """Every endpoint under all of its paths."""
        return [
            Route(path, _answering(*declared), methods=[declared[0].method])
            for declared in self._handlers
            for path in declared[0].paths
        ]


def routes_of(routers: Iterable[Router]) -> list[Route]:
    """The routes of any application: literal paths come before those with parameters, which would match them too.

    An application has its `Server` as `state.server`.
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
        body = None if endpoint.request is None else await read_body(request, server.config)
        decoded = _decoded(endpoint, body) if body is not None and is_decoded else body
        return await handler(Call(server, request, decoded, begun_s))

    return answer


def _decoded(endpoint: Endpoint, body: bytes) -> Any:
    assert endpoint.request is not None, "only a body that has a type is decoded"
    if endpoint.checks_nested:
        return decode_request(body, endpoint.fields, endpoint.request, endpoint.nested)
    return decode_request(body, endpoint.fields, endpoint.request)
