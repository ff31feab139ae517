"""`stoker config`: what is configured, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from stoker.cli.command import Command
from stoker.cli.options import ENGINE, MODELS, SAMPLING, SECURITY, SERVER, Flags, shared_options
from stoker.cli.report import EXIT_CODES, say
from stoker.cli.table import print_table
from stoker.core.params import BUILT_IN

if TYPE_CHECKING:
    from stoker.config import Setting

_SECRETS = frozenset({"api_key", "admin_key"})

config = typer.Typer(no_args_is_help=True, help="Show the configuration.", epilog=EXIT_CODES)


@config.callback()
def _group() -> None:
    """Keeps `show` a subcommand: typer would merge an only command into its group."""


@config.command(cls=Command, epilog=EXIT_CODES)
@shared_options(ENGINE, SAMPLING, SERVER, MODELS, SECURITY)
def show(flags: Flags) -> None:
    """Print the settings with their values and origins."""
    loaded = flags.load()
    print_table(("SETTING", "VALUE", "ORIGIN"), [_row(setting) for setting in loaded.settings])
    for variable in loaded.ignored_variables:
        say(f"note: the environment variable {variable} is set and means nothing to stoker")


def _row(setting: Setting) -> tuple[str, str, str]:
    return f"{setting.section}.{setting.key}", _shown(setting), setting.origin


def _shown(setting: Setting) -> str:
    if setting.key in _SECRETS and setting.value:
        return "(given, not shown)"
    if setting.value is not None:
        return str(setting.value)
    built_in = getattr(BUILT_IN, setting.key) if setting.section == "sampling" else None
    return "-" if built_in is None else f"- (the model's own, else {built_in})"
