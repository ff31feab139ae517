"""`stoker batch`: answers a file of requests, and writes a file of answers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from stoker.cli.download_bar import DownloadBar
from stoker.cli.later import (
    app,
    asyncio,
    batch_lines,
    batch_results,
    batch_run,
    progress_bar,
    server_config,
    serving,
    settings,
)
from stoker.cli.options import ENGINE, SAMPLING, Flags, say_misspelled, shared_options
from stoker.cli.report import ERROR, say
from stoker.errors import InvalidInput

_PER_PLACE = 2
"""Requests in flight for each one that can run (`parallel`): the engine chooses waiting ones by what is cached."""

Input = Annotated[
    Path,
    typer.Argument(metavar="IN", show_default=False, help="File of requests, one JSON object per line."),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="OUT", show_default=False, help="File of answers; an existing one is continued."
    ),
]
ServedModel = Annotated[
    list[str] | None,
    typer.Option(
        "--model", "-m", metavar="MODEL", show_default=False, help="Model to use. [default: the models that IN names]"
    ),
]


@shared_options(ENGINE, SAMPLING)
def batch(flags: Flags, source: Input, output: Output, model: ServedModel = None) -> None:
    """Answer a file of requests in OpenAI's batch format.

    Each answer is written as soon as it is complete. After an interruption, the same command resumes.
    """
    config = flags.load()
    say_misspelled(config)
    lines = batch_lines.read_lines(source)
    if source.resolve() == output.resolve():
        raise InvalidInput("IN and OUT are the same file", parameter="--output")
    models = model or list(dict.fromkeys(line.model for line in lines if line.model))
    with batch_results.open_results(output, {line.custom_id for line in lines}) as results:
        num_before = len(results.done)
        if num_before:
            say(f"{num_before} of {len(lines)} requests have their answers in {output} already")
        if num_before < len(lines):
            asyncio.run(_compute(config, models, source, lines, results))
        say(f"{len(lines)} answers are in {output}" + (f", {results.num_failed} FAILED" if results.num_failed else ""))
        if results.num_failed:
            raise typer.Exit(ERROR)


async def _compute(
    config: settings.Config,
    models: Sequence[str],
    source: Path,
    lines: list[batch_lines.BatchLine],
    results: batch_results.Results,
) -> None:
    registry = serving.create_registry(config, models, progress=DownloadBar())
    try:
        await registry.start()
        limits = server_config.ServerConfig(max_body_bytes=config.server.max_body_bytes)
        served = app.create_app(registry, limits)
        concurrency = _PER_PLACE * config.engine.parallel
        with progress_bar.progress_bar(len(lines) - len(results.done), is_shown=sys.stderr.isatty()) as advance:
            await batch_run.run_batch(served, source, lines, results, concurrency=concurrency, advance=advance)
    finally:
        await registry.close()
