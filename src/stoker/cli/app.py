"""The command line: which commands there are, and what becomes of an error. Each command is a module of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from stoker import __version__
from stoker.cli.bench import bench
from stoker.cli.cache import cache
from stoker.cli.chat import chat
from stoker.cli.config import config
from stoker.cli.export import export
from stoker.cli.models import models
from stoker.cli.pull import pull
from stoker.cli.report import EXIT_CODES, INTERRUPTED, exit_code, say_error
from stoker.cli.run import run
from stoker.cli.serve import serve
from stoker.errors import StokerError

_EPILOG = (
    f"{EXIT_CODES}\n\nEvery setting can also come from the environment (--ctx-size is STOKER_CTX_SIZE) or from a TOML "
    "file: see `stoker config show`."
)

app = typer.Typer(
    name="stoker",
    help="Serve local language models: one engine, every API that clients already speak.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (run, chat, serve, pull, models, export):
    app.command(epilog=EXIT_CODES)(command)
app.add_typer(bench, name="bench")
app.add_typer(cache, name="cache")
app.add_typer(config, name="config")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"stoker {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
]


@app.callback()
def _root(version: Version = False) -> None:
    """Options of the program itself."""


def main() -> None:
    """Runs the command line and exits with a documented code."""
    try:
        app()
    except StokerError as error:
        say_error(error)
        raise SystemExit(exit_code(error)) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
