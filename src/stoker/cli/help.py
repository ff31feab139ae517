"""`stoker help`: the same as `--help`, for users who expect it to be a command."""

from __future__ import annotations

from typing import Annotated

import typer

from stoker.cli.later import commands
from stoker.cli.options import Flags, shared_options

Topic = Annotated[
    list[str] | None, typer.Argument(metavar="[COMMAND]...", show_default=False, help="The command to explain.")
]


@shared_options()
def help_page(flags: Flags, topic: Topic = None) -> None:
    """Show the help of a command."""
    words = topic or []
    commands.command_line(words or ("--help",))([*words, "--help"], prog_name="stoker", standalone_mode=False)
