"""`stoker cache`: lists, checks and clears the persistent prefix cache (`--cache-dir`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from stoker.cli.answer import write
from stoker.cli.command import Command
from stoker.cli.later import block_place, model_cache
from stoker.cli.options import ENGINE, Flags, shared_options
from stoker.cli.report import EXIT_CODES, say
from stoker.cli.table import AsJson, print_rows, size
from stoker.errors import ConfigError

cache = typer.Typer(
    no_args_is_help=True, help="Manage the persistent prefix cache on disk (--cache-dir).", epilog=EXIT_CODES
)

_FOLDER = {"kv_cache_dir": ENGINE["kv_cache_dir"]}
_ID_LENGTH = 12
_COLUMNS = {
    "id": "ID",
    "model": "MODEL",
    "num_blocks": "BLOCKS",
    "size_bytes": "SIZE",
    "last_used": "LAST USED",
    "kv_format": "FORMAT",
}


@cache.command(name="list", cls=Command, epilog=EXIT_CODES)
@shared_options(_FOLDER)
def list_(flags: Flags, as_json: AsJson = False) -> None:
    """List the models with cached prefixes, and the disk space they use."""
    print_rows(_COLUMNS, _rows(_place(flags)), is_json=as_json)


@cache.command(cls=Command, epilog=EXIT_CODES)
@shared_options(_FOLDER)
def check(flags: Flags) -> None:
    """Read all cached blocks, and remove damaged ones. The read speed of the disk is printed."""
    place = _place(flags)
    num_blocks = num_bytes = 0
    began = time.perf_counter()
    for fingerprint in place.models():
        for entry, fault in place.check(fingerprint):
            num_blocks, num_bytes = num_blocks + 1, num_bytes + entry.num_bytes
            if fault:
                say(f"removed {entry.path}: {fault}")
    seconds = time.perf_counter() - began
    write(f"{num_blocks} blocks, {size(num_bytes)}, {size(num_bytes / seconds)} per second\n")


@cache.command(cls=Command, epilog=EXIT_CODES)
@shared_options(_FOLDER)
def clear(
    flags: Flags,
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Id or model from `stoker cache list`; missing = all.")
    ] = None,
) -> None:
    """Delete the cached prefixes of one model, or of all. A running server continues without them."""
    place = _place(flags)
    chosen = [i for i in place.models() if model is None or i.startswith(model) or place.described(i).name == model]
    if model is not None and not chosen:
        raise ConfigError(f"there are no cached prefixes of {model!r}; see `stoker cache list`", key="model")
    freed = sum(place.clear(fingerprint) for fingerprint in chosen)
    write(f"{size(freed)} freed\n")


def _place(flags: Flags) -> block_place.BlockPlace:
    folder = flags.load().engine.kv_cache_dir or str(model_cache.kv_dir())
    place = block_place.open_place(folder)
    _check_place(folder, place)
    return place


def _check_place(folder: str, place: block_place.BlockPlace) -> None:
    """Prints a note if the folder does not exist, because its path may be mistyped.

    Raises:
        ConfigError: the folder or object store cannot be read.
    """
    try:
        place.look()
    except FileNotFoundError:
        say(f"note: there is no folder {folder} yet")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror or error}", key="kv_cache_dir") from error


def _rows(place: block_place.BlockPlace) -> Iterator[dict[str, Any]]:
    for fingerprint in place.models():
        blocks = list(place.blocks(fingerprint))
        model = place.described(fingerprint)
        used_at = max((block.used_at for block in blocks), default=0.0)
        yield {
            "id": fingerprint[:_ID_LENGTH],
            "model": model.name,
            "num_blocks": len(blocks),
            "size_bytes": sum(block.num_bytes for block in blocks),
            "last_used": time.strftime("%Y-%m-%d %H:%M", time.localtime(used_at)) if blocks else None,
            "kv_format": model.kv_format,
        }
