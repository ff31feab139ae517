"""`stoker logs`: the log of a server on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from stoker.cli.answer import write
from stoker.cli.log_files import log_files, tail
from stoker.cli.options import Flags, shared_options
from stoker.errors import InvalidInput

Port = Annotated[
    int | None,
    typer.Option(
        "--port", metavar="N", show_default=False, help="Port of the server. [default: the server that logged last]"
    ),
]
Lines = Annotated[
    int, typer.Option("--lines", "-n", metavar="N", min=1, max=1_000_000, help="Number of lines to show.")
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Print new lines as they are logged, until Ctrl-C.")]


@shared_options()
def logs(flags: Flags, port: Port = None, lines: Lines = 50, follow: Follow = False) -> None:
    """Show the log of a server on this machine.

    It has requests, warnings and errors, and is kept after the server has stopped.
    """
    files = {path.stem.removeprefix("serve-"): path for path in log_files()}
    name = next(reversed(files), "") if port is None else str(port)
    if name not in files:
        known = f"; there are logs of {', '.join(files)}" if files else ""
        which = "a server" if port is None else f"a server at port {port}"
        raise InvalidInput(f"there is no log of {which}: `stoker serve` writes one{known}")
    for line in tail(files[name], lines, follow=follow):
        write(line)
