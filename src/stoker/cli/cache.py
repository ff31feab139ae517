"""`stoker cache`: what lies in the folder in which conversations outlive a restart."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from stoker.cli.answer import write
from stoker.cli.command import Command
from stoker.cli.later import block_place, model_cache
from stoker.cli.options import ENGINE, Flags, shared_options
from stoker.cli.report import EXIT_CODES, say
from stoker.cli.table import print_table
from stoker.errors import ConfigError

cache = typer.Typer(
    no_args_is_help=True, help="Manage the persistent prefix cache on disk (--cache-dir).", epilog=EXIT_CODES
)

_FOLDER = {"kv_cache_dir": ENGINE["kv_cache_dir"]}
_ID_LENGTH = 12


@cache.command(name="list", cls=Command, epilog=EXIT_CODES)
@shared_options(_FOLDER)
def list_(flags: Flags) -> None:
    """List the models with cached prefixes, and the disk space they use."""
    place = _place(flags)
    print_table(("ID", "MODEL", "BLOCKS", "SIZE", "LAST USED", "FORMAT"), [_row(place, i) for i in place.models()])


@cache.command(cls=Command, epilog=EXIT_CODES)
@shared_options(_FOLDER)
def check(flags: Flags) -> None:
    """Read all cached blocks, remove damaged ones, and measure how fast the disk is read."""
    place = _place(flags)
    num_blocks = num_bytes = 0
    began = time.perf_counter()
    for fingerprint in place.models():
        for entry, fault in place.check(fingerprint):
            num_blocks, num_bytes = num_blocks + 1, num_bytes + entry.num_bytes
            if fault:
                say(f"removed {entry.path}: {fault}")
    seconds = time.perf_counter() - began
    write(f"{num_blocks} blocks, {_size(num_bytes)}, {_size(round(num_bytes / seconds))} per second\n")


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
        raise ConfigError(f"nothing is kept of {model!r}; see `stoker cache list`", key="model")
    freed = sum(place.clear(fingerprint) for fingerprint in chosen)
    write(f"{_size(freed)} freed\n")


def _place(flags: Flags) -> block_place.BlockPlace:
    folder = flags.load().engine.kv_cache_dir or str(model_cache.kv_dir())
    place = block_place.open_place(folder)
    _check_place(folder, place)
    return place


def _check_place(folder: str, place: block_place.BlockPlace) -> None:
    """Nothing is kept where nothing was ever written, which may be a slip of the keyboard.

    Raises:
        ConfigError: conversations can never be kept there, or not be seen.
    """
    try:
        place.look()
    except FileNotFoundError:
        say(f"note: there is no folder {folder} yet")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be read: {error.strerror or error}", key="kv_cache_dir") from error


def _row(place: block_place.BlockPlace, fingerprint: str) -> tuple[str, ...]:
    blocks = list(place.blocks(fingerprint))
    model = place.described(fingerprint)
    used_at = max((block.used_at for block in blocks), default=0.0)
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(used_at)) if blocks else "-"
    size = _size(sum(block.num_bytes for block in blocks))
    return fingerprint[:_ID_LENGTH], model.name, str(len(blocks)), size, when, model.kv_format


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"
