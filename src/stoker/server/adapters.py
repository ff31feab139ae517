"""Lists, loads, scales and removes a model's LoRA adapters: llama-server's API, extended by names, and vLLM's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import msgspec
from starlette.responses import Response

from stoker.engine.cards import AdapterCard
from stoker.engine.config import AdapterSpec
from stoker.engine.question_messages import ChangeAdapters
from stoker.errors import InvalidInput
from stoker.server.api import Call, Router
from stoker.server.errors import json_response
from stoker.server.fields import FieldTable, Ignored, Refused, decode_request, honoured, required
from stoker.server.request.fields import Int

router = Router(api="native")


class LoadAdapterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /lora-adapters` that loads an adapter."""

    model: str | None = None
    name: str | None = None
    """Name of the adapter in requests. Not given: the file's name without `.gguf`."""
    path: str | None = None
    """Path of a GGUF file on the server's disk."""
    scale: float | None = None
    """Scale for requests that choose no adapters. Not given: 0, that is, only requests that name the adapter use it."""


class LoadByNameRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/load_lora_adapter`."""

    model: str | None = None
    lora_name: str | None = None
    """Name of the adapter in requests."""
    lora_path: str | None = None
    """Path of a GGUF file on the server's disk."""


class UnloadByNameRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/unload_lora_adapter`."""

    model: str | None = None
    lora_name: str | None = None


class AdapterScale(msgspec.Struct, frozen=True, kw_only=True):
    """An item of the list that sets the scales of adapters."""

    id: Int
    scale: float


class AdapterEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded adapter."""

    id: int
    name: str
    path: str
    scale: float
    """Scale for requests that choose no adapters."""
    rank: int
    size: int
    """Size of the file, in bytes."""


class AdaptersChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The adapters that are loaded after a change."""

    success: bool = True
    adapters: list[AdapterEntry]


LOAD_ADAPTER_FIELDS: FieldTable = honoured(LoadAdapterRequest)
LOAD_BY_NAME_FIELDS: FieldTable = honoured(
    LoadByNameRequest,
    {
        "load_inplace": Refused("remove the loaded adapter first", (False,)),
        "is_3d_lora_weight": Ignored("the file describes its matrices"),
    },
)
UNLOAD_BY_NAME_FIELDS: FieldTable = honoured(
    UnloadByNameRequest, {"lora_int_id": Ignored("adapters are told apart by their names")}
)


@router.endpoint(
    "GET",
    "/lora-adapters",
    "Lists the LoRA adapters of a model.",
    query={"model": str},
    reply=list[AdapterEntry],
)
async def list_adapters(call: Call[None]) -> Response:
    runtime = call.loaded(call.query.get("model")).runtime
    loaded_now = await call.wait(runtime.ask(ChangeAdapters()))
    return json_response(_entries(loaded_now.adapters))


@router.endpoint(
    "POST",
    "/lora-adapters",
    "Loads a LoRA adapter; or, with a list of ids and scales, sets those of requests that choose no adapters.",
    raw_body=LoadAdapterRequest,
    fields=LOAD_ADAPTER_FIELDS,
    query={"model": str},
    reply=AdaptersChanged,
    is_admin=True,
)
async def change(call: Call[bytes]) -> Response:
    if call.body.lstrip().startswith(b"["):
        return await _change(call, None, ChangeAdapters(scales=_scales_request(call.body)))
    wire = decode_request(call.body, LOAD_ADAPTER_FIELDS, LoadAdapterRequest)
    return await _change(call, wire.model, ChangeAdapters(load=_load_request(wire)))


@router.endpoint(
    "DELETE",
    "/lora-adapters/{name:path}",
    "Removes a LoRA adapter; running requests that use it finish first.",
    query={"model": str},
    reply=AdaptersChanged,
    is_admin=True,
)
async def delete(call: Call[None]) -> Response:
    return await _change(call, None, ChangeAdapters(unload=call.path_parameter("name")))


@router.endpoint(
    "POST",
    "/v1/load_lora_adapter",
    "Loads a LoRA adapter, as in vLLM.",
    body=LoadByNameRequest,
    fields=LOAD_BY_NAME_FIELDS,
    reply=AdaptersChanged,
    is_admin=True,
)
async def load_by_name(call: Call[LoadByNameRequest]) -> Response:
    name, path = required(call.body.lora_name, "lora_name"), required(call.body.lora_path, "lora_path")
    return await _change(call, call.body.model, ChangeAdapters(load=_adapter(name, path)))


@router.endpoint(
    "POST",
    "/v1/unload_lora_adapter",
    "Removes a LoRA adapter, as in vLLM; running requests that use it finish first.",
    body=UnloadByNameRequest,
    fields=UNLOAD_BY_NAME_FIELDS,
    reply=AdaptersChanged,
    is_admin=True,
)
async def unload_by_name(call: Call[UnloadByNameRequest]) -> Response:
    name = required(call.body.lora_name, "lora_name")
    return await _change(call, call.body.model, ChangeAdapters(unload=name))


async def _change(call: Call[Any], model: str | None, change: ChangeAdapters) -> Response:
    changing = call.registry.change_adapters(model or call.query.get("model"), change)
    return json_response(AdaptersChanged(adapters=_entries(await call.wait(changing))))


def _load_request(wire: LoadAdapterRequest) -> AdapterSpec:
    """The adapter that a request loads.

    Raises:
        InvalidInput: the path is missing.
    """
    if not wire.path:
        raise InvalidInput("`path` is missing: the GGUF file of the adapter", parameter="path")
    return _adapter(wire.name or PurePath(wire.path).stem, wire.path, wire.scale or 0.0)


def _adapter(name: str, path: str, scale: float = 0.0) -> AdapterSpec:
    """The adapter in a file. The server's `~` may begin the path, as on the command line."""
    return AdapterSpec(name=name, path=os.path.expanduser(path), scale=scale)


def _scales_request(body: bytes) -> dict[int, float]:
    """The scales by adapter id, from llama-server's list.

    Raises:
        InvalidInput: the body is not such a list, or has an id twice.
    """
    try:
        scales = msgspec.convert(_decoded(body), list[AdapterScale])
    except msgspec.ValidationError as error:
        raise InvalidInput(f"a list must contain objects with `id` and `scale`: {error}") from None
    found = {item.id: item.scale for item in scales}
    if len(found) < len(scales):
        raise InvalidInput("an `id` is there twice", parameter="id")
    return found


def _entries(cards: Sequence[AdapterCard]) -> list[AdapterEntry]:
    return [
        AdapterEntry(
            id=card.adapter_id, name=card.name, path=card.path, scale=card.scale, rank=card.rank, size=card.size_bytes
        )
        for card in cards
    ]


def _decoded(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the request body is not valid JSON: {error}") from None
