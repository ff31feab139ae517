"""Writes `docs/reference/` from the code: the HTTP API, the command line's own help, the tree of errors, and the
models that the native executor computes.

With `--check` it writes nothing, and fails if a page is not what it would write. The help is read off the commands'
signatures, not off what `--help` prints: how that looks changes with the version of typer.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import api_reference
import model_reference
import typer
from typer.models import ArgumentInfo, OptionInfo

from stoker import errors
from stoker.cli.command import meanings
from stoker.cli.commands import ABOUT, command_line
from stoker.cli.report import exit_code
from stoker.server.errors import status_of

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
NOTE = "<!-- Written by `make docs` from the code. Change the code, not this page. -->"


def main() -> int:
    stale = {name: text for name, text in pages().items() if text != current(name)}
    for name, text in stale.items():
        if "--check" in sys.argv[1:]:
            print(f"docs/reference/{name} is not what the code says: run `make docs`")
        else:
            FOLDER.mkdir(parents=True, exist_ok=True)
            (FOLDER / name).write_text(text, encoding="utf-8")
            print(f"wrote docs/reference/{name}")
    return 1 if stale and "--check" in sys.argv[1:] else 0


def current(name: str) -> str | None:
    path = FOLDER / name
    return path.read_text(encoding="utf-8") if path.exists() else None


def pages() -> dict[str, str]:
    """File name to text, for every page of the folder."""
    return {"api.md": api_page(), "cli.md": cli_page(), "errors.md": errors_page(), "models.md": models_page()}


def api_page() -> str:
    return "\n".join([NOTE, "", *api_reference.lines()]).rstrip() + "\n"


def models_page() -> str:
    return "\n".join([NOTE, "", *model_reference.lines()]).rstrip() + "\n"


def cli_page() -> str:
    app = command_line()
    about = " ".join(ABOUT.split())
    return "\n".join([NOTE, "", "# Command line", "", about, "", *sections(app, "stoker")]).rstrip() + "\n"


def sections(group: typer.Typer, path: str) -> Iterator[str]:
    """One section per command, in the order of `--help`."""
    for command in group.registered_commands:
        assert command.callback is not None, "typer registers a command without a function"
        yield from section(command.callback, f"{path} {command.name or command.callback.__name__}")
    for child in group.registered_groups:
        assert child.typer_instance is not None, "typer registers a group without commands"
        yield from sections(child.typer_instance, f"{path} {child.name}")


def section(callback: Callable[..., Any], path: str) -> Iterator[str]:
    parameters = inspect.signature(callback, eval_str=True).parameters
    parts = {name: get_args(parameter.annotation) for name, parameter in parameters.items()}
    arguments = [info for _, info in parts.values() if isinstance(info, ArgumentInfo)]
    yield from [f"## `{' '.join([path, *(str(info.metavar) for info in arguments)])}`", ""]
    yield from [" ".join((inspect.getdoc(callback) or "").split()), ""]
    yield from [f"- `{info.metavar}`: {info.help}" for info in arguments]
    options = {name: part for name, part in parts.items() if isinstance(part[1], OptionInfo) and not part[1].hidden}
    yield from [option(name, *part) for name, part in options.items()]
    yield ""


def option(name: str, hint: Any, info: OptionInfo) -> str:
    # Inside `Annotated` typer takes the first name for a default.
    declared = [text for text in (info.default, *(info.param_decls or ())) if isinstance(text, str)]
    names = declared or [f"--{name.replace('_', '-')}"]
    spelling = ", ".join(f"`{spelled}`" for text in names for spelled in text.split("/"))
    value = value_of(hint, info)
    return f"- {spelling}{value and ' '}{value}: {info.help or meanings()[name]}"


def value_of(hint: Any, info: OptionInfo) -> str:
    """What follows the option's name: nothing for a switch, else the choices or the kind of value."""
    kind = next((part for part in get_args(hint) if part is not NoneType), hint) if NoneType in get_args(hint) else hint
    if get_origin(kind) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(kind))
    if info.metavar:
        return info.metavar
    return {bool: "", int: "INTEGER", float: "NUMBER", str: "TEXT"}[kind]


def errors_page() -> str:
    intro = (
        "Every error that Stoker raises on purpose. The code is stable: match it, never the message. Status is that of "
        "the HTTP response, exit is that of the command line."
    )
    rows = [error_row(error, depth) for error, depth in error_tree()]
    table = ["| code | class | status | exit | meaning |", "| --- | --- | --- | --- | --- |", *rows]
    return "\n".join([NOTE, "", "# Errors", "", intro, "", *table, ""])


def error_row(kind: type[errors.StokerError], depth: int) -> str:
    error = kind("")
    name = "&nbsp;" * 4 * depth + f"`{kind.__name__}`"
    return f"| `{kind.code}` | {name} | {status_of(error)} | {exit_code(error)} | {meaning(kind)} |"


def error_tree(
    root: type[errors.StokerError] = errors.StokerError, depth: int = 0
) -> Iterator[tuple[type[errors.StokerError], int]]:
    yield root, depth
    for child in root.__subclasses__():
        yield from error_tree(child, depth + 1)


def meaning(error: type[errors.StokerError]) -> str:
    return " ".join((inspect.getdoc(error) or "").split())


if __name__ == "__main__":
    sys.exit(main())
