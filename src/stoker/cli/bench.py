"""`stoker bench`: how fast a model is served, here and beside others."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperGroup

from stoker.cli.bench_progress import BenchProgress
from stoker.cli.command import Command
from stoker.cli.download_bar import DownloadBar
from stoker.cli.options import BENCH, ENGINE, Flags, Model, shared_options
from stoker.cli.report import ERROR, EXIT_CODES, say
from stoker.errors import InvalidInput

if TYPE_CHECKING:
    from stoker.bench.profile import StepProfile
    from stoker.bench.results import Plan, Results
    from stoker.bench.runner import Measurement
    from stoker.bench.server import Server
    from stoker.engine.config import EngineConfig

_MODEL = "model"
_ENDS = (signal.SIGTERM, *((signal.SIGHUP,) if sys.platform != "win32" else ()))


class _Group(TyperGroup):
    """`stoker bench MODEL` is `stoker bench model MODEL`."""

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
        help="Servers of OpenAI's API, such as http://127.0.0.1:8080 or NAME=URL; several are measured in turn.",
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
    import msgspec

    from stoker.loading.locating import local_model

    engine = msgspec.structs.replace(flags.load(without=BENCH).engine, model=model)
    engine = local_model(engine, progress=DownloadBar())
    if profile:
        _profile(engine)
    else:
        _measure([_own_server(model, flags, engine)], flags, seed=0)


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
    """Measure running servers from any vendor; several are measured in turn and compared."""
    from stoker.bench.request import Target
    from stoker.bench.server import RunningServer

    fields: dict[str, Any] = {"model": model, "api_key": api_key, "extra": _json_object(extra), **_target_fields(flags)}
    if pid is not None and len(urls) > 1:
        raise InvalidInput("--pid belongs to one server, and there are several", parameter="pid")
    targets = {name or url: Target(url=url, **fields) for name, url in map(_named_url, urls)}
    servers = [RunningServer(name, target, given_pid=pid) for name, target in targets.items()]
    if len(servers) < len(urls):
        raise InvalidInput("two servers have the same name", parameter="urls")
    # A server that was up before may remember the prompts of an earlier run.
    _measure(servers, flags, seed=time.time_ns() % 2**32)


@bench.command(cls=Command, epilog=EXIT_CODES)
@shared_options()
def compare(flags: Flags, files: Files) -> None:
    """Compare results: every other server against the first. Refused if models or lengths differ."""
    from stoker.bench.comparison import compare as compared
    from stoker.bench.comparison import joined
    from stoker.bench.results import read_results
    from stoker.cli.bench_tables import print_comparisons, print_remarks

    results = {file.stem: read_results(file) for file in files}
    if len(results) < len(files):
        raise InvalidInput("two of the files have the same name", parameter="files")
    if len(results) > 1:
        say("note: these were not measured in turn; what the machine did beside may be part of the difference")
    together = joined(results)
    print_comparisons(compared(together))
    print_remarks(together)


def _named_url(text: str) -> tuple[str, str]:
    """`NAME=URL`; the name is empty if there is none."""
    name, equals, url = text.partition("=")
    return (name, url) if equals and "/" not in name else ("", text)


def _json_object(text: str | None) -> dict[str, Any]:
    import msgspec

    if text is None:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InvalidInput(f"--extra must be a JSON object: {error}", parameter="extra") from error


def _target_fields(flags: Flags) -> dict[str, Any]:
    if not flags.values.get("stall_after", 1.0) > 0:
        raise InvalidInput(f"--stall-after must be above 0, not {flags.values['stall_after']}", parameter="stall_after")
    return {name: flags.values[key] for key, name in _TARGET_KEYS.items() if key in flags.values}


_TARGET_KEYS = {"endpoint": "endpoint", "stall_after": "stall_s"}


def _own_server(model: str, flags: Flags, engine: EngineConfig) -> Server:
    import msgspec

    from stoker.bench.request import NOWHERE
    from stoker.bench.server import LaunchedServer

    given = [part for key in ENGINE if key in flags.values for part in _as_arguments(key, flags.values[key])]
    file = [] if flags.config_file is None else ["--config", str(flags.config_file)]
    program = [sys.executable, "-P", "-m"]
    return LaunchedServer(
        name="stoker",
        command=[*program, "stoker", "serve", model, "--port", "{port}", "--host", "127.0.0.1", *given, *file],
        offline_command=[*program, "stoker.bench.offline", msgspec.json.encode(engine).decode()],
        target=replace(NOWHERE, **_target_fields(flags)),
        model_name=model,
    )


def _as_arguments(key: str, value: Any) -> list[str]:
    """A setting as `stoker serve` is given it."""
    name = "--cache-dir" if key == "kv_cache_dir" else f"--{key.replace('_', '-')}"
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [part for one in values for part in (name, str(one))]


def _plans(flags: Flags, seed: int) -> list[Plan]:
    from stoker.bench.figures import Limits
    from stoker.bench.runner import make_plan
    from stoker.bench.scenarios import SCENARIOS

    given = flags.values
    limits = {f"{name}_s": given[f"{name}_limit"] for name in ("ttft", "itl") if f"{name}_limit" in given}
    fields: dict[str, Any] = {key: given[key] for key in _PLAN_KEYS if key in given}
    if "requests" in given:
        fields["num_requests"] = given["requests"]
    if "concurrency" in given:
        fields["concurrency"] = _numbers(given["concurrency"])
    names: Sequence[str] = given.get("scenario", ["distinct"])
    fields = {"seed": seed, **fields, "limits": Limits(**limits)}
    return [make_plan(name, **fields) for name in (SCENARIOS if "all" in names else dict.fromkeys(names))]


_PLAN_KEYS = ("prompt_tokens", "output_tokens", "turns", "shared_tokens", "repetitions", "seed", "endpoint")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput(f"--concurrency takes numbers, as in 1,2,4; not {text!r}", parameter="concurrency") from None


def _measure(servers: Sequence[Server], flags: Flags, *, seed: int) -> None:
    """Runs all plans, prints, writes the files that were asked for; exits with 1 if a request failed."""
    from stoker.bench.comparison import compare as compared
    from stoker.bench.results import write_results
    from stoker.cli.bench_tables import print_comparisons, print_results

    for option in ("json", "plot"):
        if option in flags.values:
            _check_place(flags.values[option], option)
    results = _run(servers, _plans(flags, seed))
    if "json" in flags.values:
        write_results(results, flags.values["json"])
    print_results(results)
    if "plot" in flags.values:
        from stoker.bench.plot import plot

        plot(results, flags.values["plot"])
    if len(results.servers) > 1:
        print_comparisons(compared(results))
    if results.num_failed or results.absent:
        raise typer.Exit(ERROR)


@contextmanager
def _heard(end: Callable[[], object]) -> Generator[None]:
    """Calls `end` when `timeout` or a closed terminal ends this program, unless the signal is ignored as by `nohup`."""
    before = {number: signal.getsignal(number) for number in _ENDS}
    heard = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, lambda _number, _frame: end())
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])


def _check_place(path: Path, option: str) -> None:
    """Before minutes of measuring, and not after them.

    Raises:
        InvalidInput: no file can be written there.
    """
    if os.path.isdir(path) or not os.path.isdir(path.parent):
        problem = "it is a folder" if os.path.isdir(path) else f"there is no folder {path.parent}"
        raise InvalidInput(f"--{option}: {path} cannot be written: {problem}", parameter=option)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidInput(f"--{option}: {path} cannot be written: no permission", parameter=option)


def _run(servers: Sequence[Server], plans: Sequence[Plan]) -> Results:
    import asyncio

    from stoker import __version__
    from stoker.bench.machine import this_machine
    from stoker.bench.results import Results

    started_at, machine = datetime.now(UTC).astimezone().isoformat(timespec="seconds"), this_machine()
    try:
        done = asyncio.run(_measured(servers, plans))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    return Results(
        stoker_version=__version__,
        started_at=started_at,
        command=("stoker", *sys.argv[1:]),
        machine=machine,
        servers=tuple(done.servers.values()),
        plans=tuple(plans),
        samples=tuple(done.samples),
        absent=tuple(done.absent),
    )


async def _measured(servers: Sequence[Server], plans: Sequence[Plan]) -> Measurement:
    """Measures until the end, or until a signal cancels it.

    A signal must not raise `KeyboardInterrupt` here: raised while a server is being started, it leaves that server
    running. A cancelled task stops at its next `await`, where every started server is known.
    """
    import asyncio

    from stoker.bench.runner import measure

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    with _heard(lambda: loop.call_soon_threadsafe(task.cancel)):
        return await measure(servers, plans, BenchProgress())


def _profile(engine: EngineConfig) -> None:
    from stoker.bench.profile import profile_engine
    from stoker.cli.answer import write
    from stoker.cli.bench_tables import print_headline, print_profile_header, print_profile_row

    card, profiles = profile_engine(engine)
    write(f"{card.name}: {card.vocab_size:,} tokens in the vocabulary; milliseconds, medians over the steps\n")
    print_profile_header()
    seen: list[StepProfile] = []
    for profile in profiles:
        print_profile_row(profile)
        seen.append(profile)
    print_headline(seen)
