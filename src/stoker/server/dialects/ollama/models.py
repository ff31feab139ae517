"""Ollama's endpoints that manage models. The handlers only call other modules, in order."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from stoker.engine.health import IDLE
from stoker.errors import InvalidInput, StokerError
from stoker.models.presets import read_presets
from stoker.models.store import resolve
from stoker.runtime.registry import ModelStatus, ServedModel
from stoker.server.api import Call, Router
from stoker.server.dialects.ollama.model_replies import (
    bare_tag,
    card_details,
    card_digest,
    card_tag,
    is_gguf,
    show_bare,
    show_card,
    show_file,
    show_preset,
    show_served,
    show_with,
    tag_entry,
    tag_with,
)
from stoker.server.dialects.ollama.names import name_with, ollama_name, own_name, required_name
from stoker.server.dialects.ollama.types import (
    COPY_FIELDS,
    CREATE_FIELDS,
    NAME_FIELDS,
    NDJSON_MEDIA,
    PULL_FIELDS,
    SHOW_FIELDS,
    CopyRequest,
    CreateRequest,
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
from stoker.server.error_types import OllamaError
from stoker.server.errors import error_event, json_response
from stoker.server.fields import required
from stoker.server.models.local_models import LocalModel, LocalModels, look_again, pullable
from stoker.server.models.pulls import Pulls, PullState, first_news
from stoker.server.transport.sse import NDJSON, EventStream

router = Router(api="Ollama", error=OllamaError)

_API_VERSION = "0.14.0"
"""Version of Ollama that is reported to clients, from which they infer the supported API. It is the first version with
both `/v1/responses` and `/v1/messages`; `codex --oss` requires 0.13.4."""

_NEVER = "2318-01-01T00:00:00Z"
"""Reported expiry of a model that stays loaded."""

_FAR_S = 100 * 365 * 86_400.0


@router.endpoint("GET", "/api/tags", "Lists the models that can be used.", reply=TagList)
async def tags(call: Call[None]) -> Response:
    return json_response(await call.off_loop(_tags, LocalModels(call.registry)))


@router.endpoint(
    "POST",
    "/api/show",
    "Shows a model on the disk of the server.",
    body=ShowRequest,
    fields=SHOW_FIELDS,
    reply=ShowReply,
)
async def show(call: Call[ShowRequest]) -> Response:
    name, verbose = required_name(call.body), bool(call.body.verbose)
    return json_response(await call.off_loop(_show, LocalModels(call.registry), name, verbose))


@router.endpoint("GET", "/api/ps", "Lists the loaded models.", reply=RunningList)
async def ps(call: Call[None]) -> Response:
    # Health is read on the event loop, files on another thread.
    statuses = [status for status in call.registry.statuses() if _is_ready(status.served)]
    return json_response(RunningList(await call.off_loop(_all_running, statuses)))


@router.endpoint("GET", "/api/version", "Shows the version of Ollama's API.", reply=VersionReply)
async def version(_call: Call[None]) -> Response:
    return json_response(VersionReply(_API_VERSION))


@router.endpoint(
    "POST",
    "/api/pull",
    "Downloads a model: a known name, or hf.co/org/repo with a quantization or file after a colon.",
    body=PullRequest,
    fields=PULL_FIELDS,
    reply=PullStatus,
    event=PullStatus,
    stream_media=NDJSON_MEDIA,
    is_admin=True,
)
async def pull(call: Call[PullRequest]) -> Response | EventStream:
    """Downloads a model. A model that cannot be downloaded is refused before the stream begins."""
    states = call.server.part(Pulls, lambda: Pulls(resolve)).follow(pullable(required_name(call.body)))
    is_begun = False
    try:
        first = await call.wait(first_news(states))
        if call.body.stream is False:
            await call.wait(_exhaust(states))
            return json_response(PullStatus("success"))
        is_begun = True
    finally:
        if not is_begun:
            await states.aclose()
    return EventStream(_pull_lines(first, states, call.request.scope), states.aclose, call.config, NDJSON)


@router.endpoint(
    "POST",
    "/api/create",
    "Creates a model from another one, with a system prompt and defaults of its own. No file is copied.",
    body=CreateRequest,
    fields=CREATE_FIELDS,
    reply=PullStatus,
    event=PullStatus,
    stream_media=NDJSON_MEDIA,
    is_admin=True,
)
async def create(call: Call[CreateRequest]) -> Response:
    wire, registry, name = call.body, call.registry, required_name(call.body)
    if not wire.base:
        raise InvalidInput("`from` is missing: it names the model that is the base", parameter="from")
    base = own_name(wire.base)
    await call.off_loop(LocalModels(registry).create, name, base, wire.system, wire.parameters or {})
    await look_again(registry, name)
    if wire.stream is False:
        return json_response(PullStatus("success"))
    return Response(_line(PullStatus("writing manifest")) + _line(PullStatus("success")), media_type=NDJSON_MEDIA)


@router.endpoint(
    "DELETE",
    "/api/delete",
    "Deletes a downloaded model, an alias, or what was created.",
    body=NameRequest,
    fields=NAME_FIELDS,
    is_admin=True,
)
async def delete(call: Call[NameRequest]) -> Response:
    name = required_name(call.body)
    await call.off_loop(LocalModels(call.registry).delete, name)
    await look_again(call.registry, name)
    return Response()


@router.endpoint(
    "POST",
    "/api/copy",
    "Adds another name for a model. No file is copied.",
    body=CopyRequest,
    fields=COPY_FIELDS,
    is_admin=True,
)
async def copy(call: Call[CopyRequest]) -> Response:
    wire = call.body
    names = own_name(required(wire.source, "source")), own_name(required(wire.destination, "destination"))
    await call.off_loop(LocalModels(call.registry).copy, *names)
    return Response()


def _tags(models: LocalModels) -> TagList:
    """The list of models. Of two models with the same name, only the first is listed: requests for the name mean it."""
    by_name: dict[str, TagEntry] = {}
    for model in models.usable():
        if (entry := _tag(model)) is not None:
            by_name.setdefault(entry.name, entry)
    return TagList(list(by_name.values()))


def _tag(model: LocalModel) -> TagEntry | None:
    if model.adapter is None:
        is_id = model.names[:1] == (model.name,)
        return _plain_tag(model, ollama_name(model.names[0]) if is_id else model.name)
    entry = _plain_tag(model, ollama_name(model.names[0]))
    if entry is None:
        return None
    is_id = model.name == f"{model.names[0]}:{model.adapter.name}"
    name = name_with(entry.name, model.adapter.name) if is_id else ollama_name(model.name)
    return tag_with(entry, name, model.adapter)


def _plain_tag(model: LocalModel, name: str) -> TagEntry | None:
    name, entry = ollama_name(name), tag_entry(name, model.path, model.size_bytes)
    if model.card is not None:
        known = card_tag(name, model.card)
        return known if entry is None else msgspec.structs.replace(entry, capabilities=known.capabilities)
    return bare_tag(name, model.size_bytes) if entry is None and _has_no_gguf(model) else entry


def _has_no_gguf(model: LocalModel) -> bool:
    """Whether the registry's model is in another format, so that it can be served although its file is no GGUF file."""
    return bool(model.names) and (model.path.is_dir() or model.path.suffix.lower() == ".onnx")


def _show(models: LocalModels, name: str, verbose: bool) -> ShowReply:
    model = models.find(name)
    reply = _plain_show(model, verbose=verbose)
    preset = read_presets().get(name)
    if preset is not None:
        return show_preset(reply, preset)
    return reply if model.adapter is None else show_with(reply, ollama_name(model.names[0]), model.adapter)


def _plain_show(model: LocalModel, *, verbose: bool) -> ShowReply:
    if model.card is not None:
        base = show_file(model.path, verbose=verbose) if is_gguf(model.path) else show_card(model.card)
        return show_served(base, model.card)
    return show_bare() if _has_no_gguf(model) else show_file(model.path, verbose=verbose)


def _is_ready(served: ServedModel | None) -> bool:
    if served is None:
        return False
    health = served.runtime.health()
    return health.is_ready and health.state != IDLE


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
