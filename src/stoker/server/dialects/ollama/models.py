"""Ollama's endpoints about models: who is called in which order, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Scope

from stoker.errors import InvalidInput, ModelFileNotFound, StokerError
from stoker.models.catalog import CATALOG, HUB_PREFIX
from stoker.models.store import resolve
from stoker.runtime.registry import ModelStatus, Registry, ServedModel
from stoker.server.config import ServerConfig
from stoker.server.dialects.ollama.fields import (
    COPY,
    COPY_FIELDS,
    DELETE,
    NAME_FIELDS,
    PS,
    PULL,
    PULL_FIELDS,
    SHOW,
    SHOW_FIELDS,
    TAGS,
    VERSION,
)
from stoker.server.dialects.ollama.local_models import LocalModel, LocalModels
from stoker.server.dialects.ollama.model_replies import (
    card_details,
    card_digest,
    show_card,
    show_file,
    show_with,
    tag_entry,
    tag_with,
)
from stoker.server.dialects.ollama.names import name_with, ollama_name, own_name, required_name
from stoker.server.dialects.ollama.pulls import Pulls, PullState, Resolve
from stoker.server.dialects.ollama.types import (
    CopyRequest,
    NameRequest,
    PullRequest,
    PullStatus,
    RunningEntry,
    RunningList,
    ShowReply,
    ShowRequest,
    TagEntry,
    TagList,
    VersionReply,
)
from stoker.server.errors import error_event, json_response
from stoker.server.fields import decode_request
from stoker.server.routing import routes_of
from stoker.server.transport.connection import read_body, while_connected
from stoker.server.transport.sse import NDJSON, EventStream

_API_VERSION = "0.12.6"
"""The version of Ollama whose API this is; clients ask for it to learn what they may send."""

_NEVER = "2318-01-01T00:00:00Z"
"""When a model expires that stays loaded."""

_FAR_S = 100 * 365 * 86_400.0


class OllamaModelRoutes:
    """`/api/{tags,show,ps,version,pull,delete,copy}`."""

    def __init__(self, registry: Registry, config: ServerConfig, resolve: Resolve = resolve) -> None:
        self._registry = registry
        self._models = LocalModels(registry)
        self._pulls = Pulls(resolve)
        self._config = config

    def routes(self) -> list[BaseRoute]:
        return [
            *routes_of(TAGS, self.tags),
            *routes_of(SHOW, self.show),
            *routes_of(PS, self.ps),
            *routes_of(VERSION, self.version),
            *routes_of(PULL, self.pull),
            *routes_of(DELETE, self.delete),
            *routes_of(COPY, self.copy),
        ]

    async def version(self, _request: Request) -> Response:
        return json_response(VersionReply(_API_VERSION))

    async def tags(self, _request: Request) -> Response:
        return json_response(await asyncio.to_thread(self._tags))

    async def ps(self, _request: Request) -> Response:
        # Health belongs to the event loop; files are read elsewhere.
        statuses = [status for status in self._registry.statuses() if _is_ready(status.served)]
        return json_response(RunningList(await asyncio.to_thread(_all_running, statuses)))

    async def show(self, request: Request) -> Response:
        wire = decode_request(await read_body(request, self._config), SHOW_FIELDS, ShowRequest)
        return json_response(await asyncio.to_thread(self._show, required_name(wire), bool(wire.verbose)))

    async def delete(self, request: Request) -> Response:
        wire = decode_request(await read_body(request, self._config), NAME_FIELDS, NameRequest)
        await asyncio.to_thread(self._models.delete, required_name(wire))
        return Response()

    async def copy(self, request: Request) -> Response:
        wire = decode_request(await read_body(request, self._config), COPY_FIELDS, CopyRequest)
        for name in ("source", "destination"):
            if not getattr(wire, name):
                raise InvalidInput(f"`{name}` is missing", parameter=name)
        names = own_name(wire.source or ""), own_name(wire.destination or "")
        await asyncio.to_thread(self._models.copy, *names)
        return Response()

    async def pull(self, request: Request) -> Response | EventStream:
        """What cannot be had at all is refused before the stream opens."""
        wire = decode_request(await read_body(request, self._config), PULL_FIELDS, PullRequest)
        states = self._pulls.follow(_pullable(required_name(wire)))
        is_begun = False
        try:
            first = await while_connected(request.receive, _first_news(states))
            if wire.stream is False:
                await while_connected(request.receive, _exhaust(states))
                return json_response(PullStatus("success"))
            is_begun = True
        finally:
            if not is_begun:
                await states.aclose()
        return EventStream(_pull_lines(first, states, request.scope), states.aclose, self._config, NDJSON)

    def _tags(self) -> TagList:
        """Of two models with the same name, only the one that answers to it is listed: it comes first."""
        by_name: dict[str, TagEntry] = {}
        for model in self._models.all():
            if (entry := self._tag(model)) is not None:
                by_name.setdefault(entry.name, entry)
        return TagList(list(by_name.values()))

    def _tag(self, model: LocalModel) -> TagEntry | None:
        if model.adapter is None:
            is_id = model.names[:1] == (model.name,)
            return self._plain_tag(model, ollama_name(model.names[0]) if is_id else model.name)
        entry = self._plain_tag(model, ollama_name(model.names[0]))
        if entry is None:
            return None
        is_id = model.name == f"{model.names[0]}:{model.adapter.name}"
        name = name_with(entry.name, model.adapter.name) if is_id else ollama_name(model.name)
        return tag_with(entry, name, model.adapter)

    def _plain_tag(self, model: LocalModel, name: str) -> TagEntry | None:
        entry = tag_entry(name, model.path, model.size_bytes)
        if entry is not None or model.served is None:
            return entry
        running = _running(model.served)
        return TagEntry(
            name=ollama_name(name),
            model=ollama_name(name),
            modified_at=_NEVER,
            size=running.size,
            digest=running.digest,
            details=running.details,
        )

    def _show(self, name: str, verbose: bool) -> ShowReply:
        model = self._models.find(name)
        if model.served is not None and not model.path.is_file():
            reply = show_card(model.served.runtime.card)
        else:
            reply = show_file(model.path, verbose=verbose)
        return reply if model.adapter is None else show_with(reply, ollama_name(model.names[0]), model.adapter)


def _is_ready(served: ServedModel | None) -> bool:
    return served is not None and served.runtime.health().is_ready


def _all_running(statuses: Sequence[ModelStatus]) -> list[RunningEntry]:
    return [_running_until(status, status.served) for status in statuses if status.served is not None]


def _running_until(status: ModelStatus, served: ServedModel) -> RunningEntry:
    running = _running(served)
    plan = status.plan
    size = running.size if plan is None else plan.total_bytes - plan.num_replicas * plan.cache_bytes
    return msgspec.structs.replace(running, size=size, expires_at=_expiry(status.expires_in_s))


def _expiry(expires_in_s: float) -> str:
    if expires_in_s > _FAR_S:
        return _NEVER
    return (datetime.now(UTC) + timedelta(seconds=expires_in_s)).isoformat().replace("+00:00", "Z")


def _running(served: ServedModel) -> RunningEntry:
    card, name = served.runtime.card, ollama_name(served.names[0])
    return RunningEntry(
        name=name,
        model=name,
        size=card.size_bytes,
        size_vram=0,
        digest=card_digest(card),
        details=card_details(card),
        expires_at=_NEVER,
        context_length=card.context_size,
    )


def _pullable(name: str) -> str:
    """A client may have models downloaded, but not look for files on this disk."""
    if name in CATALOG or name.startswith(HUB_PREFIX):
        return name
    known = ", ".join(sorted(CATALOG))
    message = f"model '{name}' not found: it is neither in the catalog ({known}) nor of the form hf.co/org/repo"
    raise ModelFileNotFound(message, path=name)


async def _first_news(states: AsyncGenerator[PullState, None]) -> PullState | None:
    """The first state that says anything: before it, most of what can go wrong has. None = it was here already."""
    async for state in states:
        if state.label:
            return state
    return None


async def _exhaust(states: AsyncGenerator[PullState, None]) -> None:
    async for _ in states:
        pass


async def _pull_lines(
    first: PullState | None, states: AsyncGenerator[PullState, None], scope: Scope
) -> AsyncGenerator[bytes, None]:
    yield _line(PullStatus("pulling manifest"))
    try:
        if first is not None:
            yield _line(_status(first))
        async for state in states:
            yield _line(_status(state))
        yield _line(PullStatus("success"))
    except StokerError as error:
        yield error_event(error, scope)


def _status(state: PullState) -> PullStatus:
    return PullStatus(f"pulling {state.label}", state.label, state.total_bytes or 0, state.completed_bytes)


def _line(status: PullStatus) -> bytes:
    return msgspec.json.encode(status) + b"\n"
