"""The JSON of `/lora-adapters`, in llama-server's words with names added, and what becomes of its fields."""

from __future__ import annotations

import msgspec

from stoker.server.fields import Endpoint, FieldTable, honoured
from stoker.server.request.fields import Int


class LoadAdapterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /lora-adapters` that loads one."""

    model: str | None = None
    name: str | None = None
    """What requests call it. Not given: the file's name without `.gguf`."""
    path: str | None = None
    """Of a GGUF file, on the server's disk."""
    scale: float | None = None
    """For requests that choose no adapters. Not given: 0, it is there for those who ask for it."""


class AdapterScale(msgspec.Struct, frozen=True, kw_only=True):
    """An item of the list that sets the scales of all."""

    id: Int
    scale: float


class AdapterEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One that is loaded."""

    id: int
    name: str
    path: str
    scale: float
    """For requests that choose no adapters."""
    rank: int
    size: int
    """In bytes."""


class AdaptersChanged(msgspec.Struct, frozen=True, kw_only=True):
    """What is loaded now."""

    success: bool = True
    adapters: list[AdapterEntry]


LOAD_ADAPTER_FIELDS: FieldTable = honoured(LoadAdapterRequest)

_API = "native"

LIST_ADAPTERS = Endpoint(
    api=_API,
    method="GET",
    path="/lora-adapters",
    summary="Lists the LoRA adapters of a model.",
    query={"model": str},
    reply=list[AdapterEntry],
)
CHANGE_ADAPTERS = Endpoint(
    api=_API,
    method="POST",
    path="/lora-adapters",
    summary="Loads a LoRA adapter; or, with a list of ids and scales, sets those of requests that choose no adapters.",
    request=LoadAdapterRequest,
    fields=LOAD_ADAPTER_FIELDS,
    query={"model": str},
    reply=AdaptersChanged,
    is_admin=True,
)
DELETE_ADAPTER = Endpoint(
    api=_API,
    method="DELETE",
    path="/lora-adapters/{name:path}",
    summary="Removes a LoRA adapter; requests that compute with it go on to their end.",
    query={"model": str},
    reply=AdaptersChanged,
    is_admin=True,
)

ENDPOINTS = (LIST_ADAPTERS, CHANGE_ADAPTERS, DELETE_ADAPTER)
