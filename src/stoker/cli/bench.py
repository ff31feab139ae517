"""`stoker bench`: the commands that measure how fast a model is served. `bench_runs` does their work."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stoker.cli.command import Command
from stoker.cli.download_bar import DownloadBar
from stoker.cli.later import bench_runs, locating, msgspec
from stoker.cli.options import BENCH, ENGINE, Flags, Model, shared_options
from stoker.cli.report import EXIT_CODES

_MODEL = "model"


class _Group(TyperGroup):
    """Makes `stoker bench MODEL` short for `stoker bench model MODEL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_named = not args or args[0] in self.commands or args[0] in ctx.help_option_names
        return super().parse_args(ctx, args if is_named else [_MODEL, *args])


bench = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    help="Measure the speed of a served model. `stoker bench MODEL` is short for `stoker bench model MODEL`.",
    epilog=EXIT_CODES,
)

Profile = Annotated[
    bool, typer.Option("--profile", help="Show the time of each part of a step instead, at batch size 1, 8 and 16.")
]
Urls = Annotated[
    list[str],
    typer.Argument(
        metavar="URL...",
        show_default=False,
        help="Servers with OpenAI's API, such as http://127.0.0.1:8080 or NAME=URL; several are measured in turn.",
    ),
]
Files = Annotated[list[Path], typer.Argument(metavar="FILE...", show_default=False, help="Files that --json wrote.")]
ServedModel = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", show_default=False, help="Model to request. [default: the first listed]"),
]
ApiKey = Annotated[
    str | None, typer.Option("--api-key", metavar="KEY", show_default=False, help="API key, sent as a bearer token.")
]
Pid = Annotated[
    int | None,
    typer.Option(
        "--pid",
        show_default=False,
        help="Process id of the server. [default: the process that listens on a local port]",
    ),
]
Extra = Annotated[
    str | None,
    typer.Option(
        "--extra", metavar="JSON", show_default=False, help="Additional fields for each request; they override others."
    ),
]


@bench.command(name=_MODEL, cls=Command, epilog=EXIT_CODES)
@shared_options(BENCH, ENGINE)
def model(flags: Flags, model: Model, profile: Profile = False) -> None:
    """Start `stoker serve MODEL` on a free port, measure it, and stop it."""
    engine = msgspec.structs.replace(flags.load(without=BENCH).engine, model=model)
    engine = locating.local_model(engine, progress=DownloadBar())
    if profile:
        bench_runs.profile(engine)
    else:
        bench_runs.measure([bench_runs.own_server(model, flags, engine)], flags, seed=0)


@bench.command(cls=Command, epilog=EXIT_CODES)
@shared_options(BENCH, is_configured=False)
def serve(
    flags: Flags,
    urls: Urls,
    model: ServedModel = None,
    api_key: ApiKey = None,
    pid: Pid = None,
    extra: Extra = None,
) -> None:
    """Measure running servers with OpenAI's API; several are measured in turn and compared."""
    servers = bench_runs.running_servers(flags, urls, model=model, api_key=api_key, pid=pid, extra=extra)
    # The prefix cache of a server that was already running may contain the prompts of an earlier run.
    bench_runs.measure(servers, flags, seed=time.time_ns() % 2**32)


@bench.command(cls=Command, epilog=EXIT_CODES)
@shared_options()
def compare(flags: Flags, files: Files) -> None:
    """Compare results with those of the first server. Refused if models or lengths differ."""
    bench_runs.compare_files(files)
