"""`stoker config`: shows settings and where they were set."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stoker.cli.answer import write
from stoker.cli.command import Command
from stoker.cli.later import msgspec, settings
from stoker.cli.options import ENGINE, FILE, MODELS, SAMPLING, SECURITY, SERVER, Flags, say_ignored, shared_options
from stoker.cli.report import EXIT_CODES, say
from stoker.cli.table import AsJson, print_json, print_table
from stoker.core.params import BUILT_IN

_SECRETS = frozenset({"api_key", "admin_key"})

config = typer.Typer(no_args_is_help=True, help="Show the configuration.", epilog=EXIT_CODES)

All = Annotated[bool, typer.Option("--all", "-a", help="Also print the settings that have their defaults.")]


@config.command(cls=Command, epilog=EXIT_CODES)
@shared_options(ENGINE, SAMPLING, SERVER, MODELS, SECURITY)
def show(flags: Flags, every: All = False, as_json: AsJson = False) -> None:
    """Print changed settings and where they were set. With --all, every setting."""
    loaded = flags.load()
    shown = [setting for setting in loaded.settings if every or as_json or setting.origin != "default"]
    if as_json:
        print_json({"file": None if loaded.file is None else str(loaded.file), "settings": [*map(_entry, shown)]})
    else:
        say(f"file: {_place(loaded)}")
        print_table(("SETTING", "VALUE", "ORIGIN"), [_row(setting) for setting in shown])
        if not every:
            say(f"{len(loaded.settings) - len(shown)} settings have their defaults: `stoker config show --all`")
    say_ignored(loaded.ignored_variables)


@config.command(cls=Command, epilog=EXIT_CODES)
@shared_options(FILE, is_configured=False)
def path(flags: Flags) -> None:
    """Print the path of the configuration file. It may not exist yet."""
    write(f"{flags.load().file or settings.usual_file() or ''}\n")


def _place(loaded: settings.Config) -> str:
    return str(loaded.file) if loaded.file is not None else f"{settings.usual_file()} (does not exist)"


def _entry(setting: settings.Setting) -> dict[str, Any]:
    value = "(set, not shown)" if _is_secret(setting) else msgspec.to_builtins(setting.value)
    return {"key": f"{setting.section}.{setting.key}", "value": value, "origin": setting.origin}


def _row(setting: settings.Setting) -> tuple[str, str, str]:
    return f"{setting.section}.{setting.key}", _shown(setting), setting.origin


def _is_secret(setting: settings.Setting) -> bool:
    return setting.key in _SECRETS and bool(setting.value)


def _shown(setting: settings.Setting) -> str:
    if _is_secret(setting):
        return "(set, not shown)"
    if setting.value is not None:
        return str(setting.value)
    built_in = getattr(BUILT_IN, setting.key) if setting.section == "sampling" else None
    return "-" if built_in is None else f"- (the model's own, else {built_in})"
