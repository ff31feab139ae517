"""`stoker batch`: a file of requests, a file of answers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stoker.cli.download_bar import DownloadBar
from stoker.cli.options import ENGINE, SAMPLING, Flags, shared_options
from stoker.cli.report import ERROR, say
from stoker.errors import InvalidInput

if TYPE_CHECKING:
    from stoker.config import Config
    from stoker.server.batches.lines import BatchLine
    from stoker.server.batches.results import Results

_PER_PLACE = 2
"""Requests that are asked for each that runs: those that wait are chosen by what is cached."""

Input = Annotated[
    Path,
    typer.Argument(metavar="IN", show_default=False, help="File of requests, one JSON object in each line."),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="OUT", show_default=False, help="File of answers; one that is there is completed."
    ),
]
ServedModel = Annotated[
    list[str] | None,
    typer.Option(
        "--model", "-m", metavar="MODEL", show_default=False, help="Model to ask. [default: those that IN names]"
    ),
]


@shared_options(ENGINE, SAMPLING)
def batch(flags: Flags, source: Input, output: Output, model: ServedModel = None) -> None:
    """Answer a file of requests in OpenAI's batch format.

    Each answer is written as soon as it is complete. After an interruption, the same command goes on where it ended.
    """
    from stoker.server.batches.lines import read_lines
    from stoker.server.batches.results import open_results

    config = flags.load()
    lines = read_lines(source)
    if source.resolve() == output.resolve():
        raise InvalidInput("IN and OUT are the same file", parameter="--output")
    models = model or list(dict.fromkeys(line.model for line in lines if line.model))
    with open_results(output, {line.custom_id for line in lines}) as results:
        num_before = len(results.done)
        if num_before:
            say(f"{num_before} of {len(lines)} requests have their answers in {output} already")
        if num_before < len(lines):
            import asyncio

            asyncio.run(_compute(config, models, source, lines, results))
        say(f"{len(lines)} answers are in {output}" + (f", {results.num_failed} FAILED" if results.num_failed else ""))
        if results.num_failed:
            raise typer.Exit(ERROR)


async def _compute(
    config: Config, models: Sequence[str], source: Path, lines: list[BatchLine], results: Results
) -> None:
    from stoker.llm.progress_bar import progress_bar
    from stoker.server.batches.run import run_batch
    from stoker.server.config import ServerConfig
    from stoker.server.transport.app import create_app
    from stoker.serving import create_registry

    registry = create_registry(config, models, progress=DownloadBar())
    try:
        await registry.start()
        app = create_app(registry, ServerConfig(max_body_bytes=config.server.max_body_bytes))
        concurrency = _PER_PLACE * config.engine.parallel
        with progress_bar(len(lines) - len(results.done), is_shown=sys.stderr.isatty()) as advance:
            await run_batch(app, source, lines, results, concurrency=concurrency, advance=advance)
    finally:
        await registry.close()
