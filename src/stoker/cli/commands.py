"""Which commands there are. Each is a module of its own, named after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from stoker import __version__
from stoker.cli.answer import write
from stoker.cli.command import Command
from stoker.cli.report import EXIT_CODES

COMMANDS = ("run", "chat", "serve", "pull", "models", "export", "bench", "cache", "config")
"""In the order of the help."""
HELP_OPTIONS = ("-h", "--help")

ABOUT = (
    f"{EXIT_CODES}\n\nEvery setting can also come from the environment (--ctx-size is STOKER_CTX_SIZE) or from a TOML "
    "file: see `stoker config show`."
)
_SHORT = "Exit codes: 0 done, 1 error, 2 usage, 3 model, 130 interrupted. Settings: see `stoker config show -h`."


def command_line(arguments: Sequence[str] = ()) -> typer.Typer:
    """The whole command line; if `arguments` begin with a command, with that one alone.

    Each has many options, and a machine takes longer to make those of all than to do what some of them do. Hence the
    list of all commands, `stoker --help`, is made without their options.
    """
    app = typer.Typer(
        name="stoker",
        help="Serve local language models: one engine, every API that clients already speak.",
        epilog=_SHORT,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": list(HELP_OPTIONS)},
    )
    app.callback()(_root)
    asked = arguments[0] if arguments else ""
    for name in (asked,) if asked in COMMANDS else COMMANDS:
        _add(app, name, is_listed_only=asked in HELP_OPTIONS)
    return app


def _add(app: typer.Typer, name: str, *, is_listed_only: bool) -> None:
    command: typer.Typer | Callable[..., Any] = getattr(import_module(f"stoker.cli.{name}"), name)
    if is_listed_only:
        text = command.info.help if isinstance(command, typer.Typer) else command.__doc__
        app.command(name, help=str(text))(_do_nothing)
    elif isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(cls=Command, epilog=EXIT_CODES)(command)


def _do_nothing() -> None: ...


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        write(f"stoker {__version__}\n")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
]


def _root(version: Version = False) -> None:
    """Options of the program itself."""
