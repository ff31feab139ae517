"""Says what a well-known model will cost before it is downloaded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stoker.cli.report import say
from stoker.cli.table import size

if TYPE_CHECKING:
    from stoker.models.library import KnownModel


def announce(model: str) -> None:
    """Says how large the download is and whether the model will fit into memory, if it is a known one and not here."""
    if "/" in model or os.path.exists(model):
        return
    from stoker.models.aliases import read_aliases
    from stoker.models.catalog import CATALOG

    if model in CATALOG or model in read_aliases():
        return
    from stoker.models.library import known_model

    known = known_model(model)
    if known is not None and not _is_here(known):
        say(_announcement(known))


def _is_here(model: KnownModel) -> bool:
    from stoker.models.library import names_in_library
    from stoker.models.store import list_models

    repo = model.source.rpartition(":")[0]
    files = [found.name for found in list_models() if found.name.startswith(f"{repo}:")]
    quantization = model.quantization.lower()
    return any(model.name in names_in_library(file) or quantization in file.lower() for file in files)


def _announcement(model: KnownModel) -> str:
    from stoker.models.fit import needs_of
    from stoker.models.memory import available_memory

    needed, free = needs_of(model).least_bytes, available_memory()
    what = f"{model.name}: a download of about {size(model.size_bytes)} ({model.license})"
    memory = f"takes about {size(needed)} of memory"
    if needed <= free:
        return f"{what}; {memory}, {size(free)} are free"
    return f"{what}; it {memory}, but only {size(free)} are free: see `stoker models --all` for smaller ones"
