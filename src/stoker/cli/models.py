"""`stoker models`: lists models that can be downloaded by name, and those on this disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from stoker.cli.later import catalog, library, memory, store
from stoker.cli.options import Flags, shared_options
from stoker.cli.report import say
from stoker.cli.table import AsJson, print_rows

All = Annotated[bool, typer.Option("--all", "-a", help="List all models that have a short name.")]

_HERE = {"model": "MODEL", "size_bytes": "SIZE", "title": "DESCRIPTION", "path": "PATH"}
_KNOWN = {
    "model": "MODEL",
    "size_bytes": "SIZE",
    "context": "CONTEXT",
    "can": "CAN",
    "license": "LICENSE",
    "memory_bytes": "MEMORY",
    "fits": "FITS",
    "is_here": "PULLED",
}


@shared_options()
def models(flags: Flags, every: All = False, as_json: AsJson = False) -> None:
    """List models that can be downloaded. With --all, every model that has a short name.

    MEMORY is the approximate memory of the model with a context of 8192 tokens; FITS says whether that much
    is free now.
    """
    if every:
        print_rows(_KNOWN, _known(), is_json=as_json)
        return
    print_rows(_HERE, _here(), is_json=as_json)
    if not as_json:
        say("more: `stoker models --all` lists well-known models, `stoker search WORDS` looks on the hub")


def _here() -> Iterator[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {
        entry.name: {
            "model": entry.name,
            "size_bytes": entry.size_bytes,
            "title": entry.title,
            "path": "not downloaded",
        }
        for entry in catalog.CATALOG.values()
    }
    for found in store.list_models():
        name = next(library.names_in_library(found.name), found.name)
        entry = catalog.CATALOG.get(found.name)
        title = entry.title if entry is not None else found.name if name != found.name else ""
        rows[name] = {"model": name, "size_bytes": found.size_bytes, "title": title, "path": _short(str(found.path))}
    return iter(rows.values())


def _short(path: str) -> str:
    """The path with `~` for the home folder."""
    home = os.path.expanduser("~")
    return f"~{path.removeprefix(home)}" if path.startswith(f"{home}{os.sep}") else path


def _known() -> Iterator[dict[str, Any]]:
    names = [found.name for found in store.list_models()]
    here = {short for name in names for short in (name, *library.names_in_library(name))}
    available = memory.available_memory()
    for entry in catalog.CATALOG.values():
        yield {"title": entry.title, **_row(entry, available), "is_here": entry.name in here}
    for model in library.library().values():
        more = {"aliases": list(model.names[1:]), "source": model.source, "architecture": model.architecture}
        yield {**_row(model, available), **more, "is_here": model.name in here}


def _row(model: library.KnownModel | catalog.CatalogEntry, available: int) -> dict[str, Any]:
    needed = library.needs_of(model).least_bytes
    return {
        "model": model.name,
        "size_bytes": model.size_bytes,
        "context": model.context,
        "can": list(model.abilities),
        "license": model.license,
        "memory_bytes": needed,
        "fits": needed <= available,
    }
