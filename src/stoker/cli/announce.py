"""Announces what a well-known model costs before it is downloaded: size, license and memory. It downloads nothing."""

from __future__ import annotations

import os

from stoker.cli.later import aliases, catalog, library, memory, store
from stoker.cli.report import say
from stoker.cli.table import size


def announce(model: str) -> None:
    """Prints download size and memory of a model, if `models.library` has it and this disk does not."""
    if "/" in model or os.path.exists(model):
        return
    if model in catalog.CATALOG or model in aliases.read_aliases():
        return
    known = library.known_model(model)
    if known is not None and not _is_here(known):
        say(_announcement(known))


def _is_here(model: library.KnownModel) -> bool:
    repo = model.source.rpartition(":")[0]
    files = [found.name for found in store.list_models() if found.name.startswith(f"{repo}:")]
    quantization = model.quantization.lower()
    return any(model.name in library.names_in_library(file) or quantization in file.lower() for file in files)


def _announcement(model: library.KnownModel) -> str:
    needed, free = library.needs_of(model).least_bytes, memory.available_memory()
    what = f"{model.name}: a download of about {size(model.size_bytes)} ({model.license})"
    takes = f"takes about {size(needed)} of memory"
    if needed <= free:
        return f"{what}; {takes}, {size(free)} are free"
    return f"{what}; it {takes}, but only {size(free)} are free: see `stoker models --all` for smaller ones"
