"""The list of all commands, and the command line that is made of them. Each command is a module of the same name."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stoker import __version__
from stoker.cli.answer import write
from stoker.cli.command import Command, UsageError
from stoker.cli.later import catalog, library
from stoker.cli.report import EXIT_CODES, set_up_logging

_GROUPS = {
    "Run and serve": {
        "run": "Answer one prompt, or chat on a terminal.",
        "chat": "Chat with a model.",
        "serve": "Serve models over HTTP.",
        "ps": "List the models that a server has loaded.",
        "top": "Watch a server: requests, queue, KV cache.",
        "stop": "Unload a model from a running server.",
        "logs": "Show the log of a server on this machine.",
    },
    "Models": {
        "pull": "Download a model if needed, pack its weights, and print its path.",
        "models": "List models that can be downloaded.",
        "search": "Search for GGUF models.",
        "list": "List downloaded models and presets.",
        "show": "Show a model: architecture, size, context, license.",
        "create": "Create a preset of a model.",
        "cp": "Add another name for a model.",
        "rm": "Remove downloaded models, additional names and presets.",
    },
}
"""Section of `stoker --help` -> command -> its summary, which is the first sentence of the command's own help."""
_BRIEF = {
    "transcribe": "transcribe (speech)",
    "batch": "batch (files of requests)",
    "bench": "bench",
    "quantize": "quantize",
    "export": "export (ONNX)",
    "cluster": "cluster (Ray)",
    "cache": "cache (prefixes)",
    "config": "config (settings)",
}
"""Rarely used commands -> how `stoker --help` lists them. They share few lines, so that the help fits 24 lines."""
_UNLISTED = ("version", "help")
COMMANDS = tuple(name for names in [*_GROUPS.values(), _BRIEF, _UNLISTED] for name in names)
"""Names of all commands, in the order of `stoker --help`, which does not list the last ones (`_UNLISTED`)."""
_NAME_WIDTH, _WIDTH = 11, 79
_NAMES = {"list": "list_models", "help": "help_page"}
"""Command -> name of its function, where the command has the name of a Python built-in (`list`, `help`)."""
SYNONYMS = {
    "ls": "list",
    "remove": "rm",
    "delete": "rm",
    "download": "pull",
    "get": "pull",
    "install": "pull",
    "tags": "list",
    "start": "serve",
    "server": "serve",
    "api": "serve",
    "ui": "serve",
    "web": "serve",
    "generate": "run",
    "complete": "run",
    "unload": "stop",
    "info": "show",
    "copy": "cp",
    "status": "ps",
    "monitor": "top",
    "watch": "top",
    "log": "logs",
    "find": "search",
    "benchmark": "bench",
    "convert": "export",
}
"""Commands of other programs -> their names in Stoker."""
HELP_OPTIONS = ("-h", "--help")

ABOUT = (
    f"{EXIT_CODES}\n\nEvery setting can also come from the environment (--ctx-size is STOKER_CTX_SIZE) or from a TOML "
    "file: see `stoker config show`."
)
_OPTIONS = "Options: -h, -v, --version, --install-completion, --show-completion"
_SHORT = "More: stoker COMMAND -h. Exit codes: 0 done, 1 error, 2 usage, 3 model, 130 ^C"


class _Commands(TyperGroup):
    """The top-level command. It shows all commands on one screen, and names the equivalents of `SYNONYMS`."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self.format_usage(ctx, formatter)
        formatter.write(f"{self.help}\n")
        for title, summaries in _GROUPS.items():
            formatter.write(f"{title}:\n")
            for name, summary in summaries.items():
                formatter.write(f"  {name:{_NAME_WIDTH}}{summary}\n")
        others = f"Others: {', '.join(_BRIEF.values())}"
        formatter.write(textwrap.fill(others, _WIDTH, subsequent_indent="  ", break_on_hyphens=False) + "\n")
        formatter.write(f"{_OPTIONS}\n{self.epilog}\n")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in SYNONYMS:
            raise UsageError(f"No such command {args[0]!r}: it is called `stoker {SYNONYMS[args[0]]}` here", ctx)
        if args and args[0] not in COMMANDS and _is_model(args[0]):
            raise UsageError(f"No such command {args[0]!r}. To run this model: `stoker run {args[0]}`", ctx)
        return super().resolve_command(ctx, args)


def _is_model(word: str) -> bool:
    return word.endswith(".gguf") or "/" in word or word in catalog.CATALOG or library.known_model(word) is not None


def command_line(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command line as a Typer app. If `arguments` begin with a command, the app contains only that command.

    To define the options of all commands takes longer than the work of some commands. Hence the app of `stoker --help`
    and of `stoker --version` contains no command at all.
    """
    app = typer.Typer(
        name="stoker",
        help="Serve local language models: one engine, every API that clients already speak.",
        epilog=_SHORT,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        cls=_Commands,
        context_settings={"help_option_names": list(HELP_OPTIONS)},
    )
    app.callback()(_root)
    asked = arguments[0] if arguments else ""
    if asked not in (*HELP_OPTIONS, "--version"):
        for name in (asked,) if asked in COMMANDS else COMMANDS:
            _add(app, name)
    return app


def _add(app: typer.Typer, name: str) -> None:
    command: typer.Typer | Callable[..., Any] = getattr(import_module(f"stoker.cli.{name}"), _NAMES.get(name, name))
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name)
    else:
        app.command(name, cls=Command, epilog=EXIT_CODES)(command)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        write(f"stoker {__version__}\n")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
]


Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Same as --verbose after the command.")]


def _root(version: Version = False, verbose: Verbose = False) -> None:
    """Options of the program itself."""
    if verbose:
        set_up_logging("info")
