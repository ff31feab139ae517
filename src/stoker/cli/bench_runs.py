"""The work of `stoker bench`: makes servers and plans from options, measures, prints results, and writes files."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import typer

from stoker import __version__
from stoker.bench.comparison import compare, joined
from stoker.bench.figures import Limits
from stoker.bench.plot import plot
from stoker.bench.profile import StepProfile, profile_engine
from stoker.bench.request import NOWHERE, Answer, Target
from stoker.bench.results import Plan, Results, Sample, read_results, this_machine, write_results
from stoker.bench.runner import Measurement, make_plan
from stoker.bench.runner import measure as measured
from stoker.bench.scenarios import SCENARIOS
from stoker.bench.server import LaunchedServer, RunningServer, Server
from stoker.cli.answer import write
from stoker.cli.bench_tables import (
    print_comparisons,
    print_headline,
    print_profile_header,
    print_profile_row,
    print_remarks,
    print_results,
)
from stoker.cli.options import ENGINE, Flags
from stoker.cli.report import ERROR, say
from stoker.engine.config import EngineConfig
from stoker.errors import InvalidInput
from stoker.models.cache import PACKED_DIR, packed_dir
from stoker.models.gguf import part_paths

_ENDS = (signal.SIGTERM, *((signal.SIGHUP,) if sys.platform != "win32" else ()))
_REDRAW_EVERY_S = 0.2
_TARGET_KEYS = {"endpoint": "endpoint", "stall_after": "stall_s"}
_PLAN_KEYS = ("prompt_tokens", "output_tokens", "turns", "shared_tokens", "repetitions", "seed", "endpoint")


def measure(servers: Sequence[Server], flags: Flags, *, seed: int) -> None:
    """Runs all plans, prints the results, and writes the files that the options name.

    Args:
        servers: measured in turn.
        flags: options of `stoker bench`.
        seed: random seed of the prompts, unless the options give one.

    Raises:
        StokerError: an option cannot be used, or a server cannot be measured.
        typer.Exit: with code 1 at the end, if a request failed or a scenario is absent.
    """
    for option in ("json", "plot"):
        if option in flags.values:
            _check_place(flags.values[option], option)
    results = _run(servers, _plans(flags, seed))
    if "json" in flags.values:
        write_results(results, flags.values["json"])
    print_results(results)
    if "plot" in flags.values:
        plot(results, flags.values["plot"])
    if len(results.servers) > 1:
        print_comparisons(compare(results))
    if results.num_failed or results.absent:
        raise typer.Exit(ERROR)


def compare_files(files: Sequence[Path]) -> None:
    """Compares the servers in these result files with the first one, and prints the comparisons.

    Raises:
        StokerError: two files have the same name, a file cannot be read, or the results cannot be compared.
    """
    results = {file.stem: read_results(file) for file in files}
    if len(results) < len(files):
        raise InvalidInput("two of the files have the same name", parameter="files")
    if len(results) > 1:
        say("note: these were not measured in turn; other load on the machine may be part of the difference")
    together = joined(results)
    print_comparisons(compare(together))
    print_remarks(together)


def profile(engine: EngineConfig) -> None:
    """Prints how long each stage of a decoding step takes, for several batch sizes and ways of sampling.

    Raises:
        StokerError: the model cannot be loaded.
    """
    card, profiles = profile_engine(engine)
    write(f"{card.name}: {card.vocab_size:,} tokens in the vocabulary; milliseconds, medians over the steps\n")
    print_profile_header()
    seen: list[StepProfile] = []
    for step in profiles:
        print_profile_row(step)
        seen.append(step)
    print_headline(seen)


def running_servers(
    flags: Flags, urls: Sequence[str], *, model: str | None, api_key: str | None, pid: int | None, extra: str | None
) -> list[RunningServer]:
    """The running servers at these addresses, each `URL` or `NAME=URL`.

    Args:
        flags: options of `stoker bench`.
        urls: at least one.
        model: the model to request. None = the first one that the server lists.
        api_key: sent to each server as a bearer token. None = no key.
        pid: process id of the server, for a single URL only. None = the process that listens on a local port.
        extra: additional fields of each request, as a JSON object. None = no fields.

    Raises:
        InvalidInput: an option cannot be used.
    """
    fields: dict[str, Any] = {"model": model, "api_key": api_key, "extra": _json_object(extra), **_target_fields(flags)}
    if pid is not None and len(urls) > 1:
        raise InvalidInput("--pid can be given for a single server only", parameter="pid")
    targets = {name or url: Target(url=url, **fields) for name, url in map(_named_url, urls)}
    servers = [RunningServer(name, target, given_pid=pid) for name, target in targets.items()]
    if len(servers) < len(urls):
        raise InvalidInput("two servers have the same name", parameter="urls")
    return servers


def own_server(model: str, flags: Flags, engine: EngineConfig) -> Server:
    """A `stoker serve` of this model, which the measurement starts and stops."""
    given = [part for key in ENGINE if key in flags.values for part in _as_arguments(key, flags.values[key])]
    file = [] if flags.config_file is None else ["--config", str(flags.config_file)]
    program = [sys.executable, "-P", "-m"]
    return LaunchedServer(
        name="stoker",
        command=[*program, "stoker", "serve", model, "--port", "{port}", "--host", "127.0.0.1", *given, *file],
        offline_command=[*program, "stoker.bench.offline", msgspec.json.encode(engine).decode()],
        target=replace(NOWHERE, **_target_fields(flags)),
        model_name=model,
        prepared=(PACKED_DIR, packed_dir()),
        files=lambda: [*_files_of(Path(engine.model_path)), *packed_dir().glob("*.stoker")],
    )


def _files_of(model: Path) -> list[Path]:
    """The parts of a GGUF model, or all files of a folder."""
    return [path for path in model.rglob("*") if path.is_file()] if model.is_dir() else part_paths(model)


def _named_url(text: str) -> tuple[str, str]:
    """Name and URL from `NAME=URL`; the name is empty if the text is a URL alone."""
    name, equals, url = text.partition("=")
    return (name, url) if equals and "/" not in name else ("", text)


def _json_object(text: str | None) -> dict[str, Any]:
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


def _as_arguments(key: str, value: Any) -> list[str]:
    """A setting as arguments of `stoker serve`."""
    name = "--cache-dir" if key == "kv_cache_dir" else f"--{key.replace('_', '-')}"
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [part for one in values for part in (name, str(one))]


def _plans(flags: Flags, seed: int) -> list[Plan]:
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


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput(f"--concurrency takes numbers, as in 1,2,4; not {text!r}", parameter="concurrency") from None


@contextmanager
def _heard(end: Callable[[], object]) -> Generator[None]:
    """Calls `end` on SIGTERM (`timeout`) and SIGHUP (a closed terminal), unless the signal is ignored (`nohup`)."""
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
    """Checks that a file can be written, before minutes of measuring and not after them.

    Raises:
        InvalidInput: the file cannot be written.
    """
    if os.path.isdir(path) or not os.path.isdir(path.parent):
        problem = "it is a folder" if os.path.isdir(path) else f"there is no folder {path.parent}"
        raise InvalidInput(f"--{option}: {path} cannot be written: {problem}", parameter=option)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidInput(f"--{option}: {path} cannot be written: no permission", parameter=option)


def _run(servers: Sequence[Server], plans: Sequence[Plan]) -> Results:
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
    running. A cancelled task stops at its next `await`, where every started server is known and can be stopped.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    with _heard(lambda: loop.call_soon_threadsafe(task.cancel)):
        return await measured(servers, plans, _Progress())


class _Progress:
    """Shows the progress of a measurement on stderr. Satisfies `bench.runner.Watch`."""

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._title = ""
        self._num_pieces = self._num_answers = self._num_failed = 0
        self._began_s = self._drawn_s = 0.0

    def begin(self, server: str, plan: Plan, repetition: int) -> None:
        """See `Watch.begin`."""
        self._title = f"{plan.scenario}, {server}, {repetition + 1} of {plan.repetitions}"
        self._num_pieces = self._num_answers = self._num_failed = 0
        self._began_s = time.monotonic()
        self._draw()

    def piece(self) -> None:
        """See `Watch.piece`."""
        self._num_pieces += 1
        if self._is_live and time.monotonic() - self._drawn_s > _REDRAW_EVERY_S:
            self._draw()

    def answered(self, answer: Answer) -> None:
        """See `Watch.answered`."""
        self._num_answers += 1
        self._num_failed += answer.failure is not None

    def end(self, samples: Sequence[Sample]) -> None:
        """See `Watch.end`."""
        if self._is_live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        say(self._line())

    def _draw(self) -> None:
        self._drawn_s = time.monotonic()
        if self._is_live:
            print(f"\r\x1b[K{self._line()}", end="", file=sys.stderr, flush=True)

    def _line(self) -> str:
        elapsed_s = time.monotonic() - self._began_s
        failed = f", {self._num_failed} FAILED" if self._num_failed else ""
        return f"{self._title}: {self._num_answers} answers, {self._num_pieces} pieces, {elapsed_s:.1f} s{failed}"
