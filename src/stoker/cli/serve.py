"""`stoker serve`: models behind HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.cli.download_bar import DownloadBar
from stoker.cli.options import ENGINE, MODELS, SAMPLING, SECURITY, SERVER, Flags, Models, shared_options
from stoker.cli.report import say

if TYPE_CHECKING:
    from stoker.runtime.model_events import ModelEvent


@shared_options(ENGINE, SERVER, MODELS, SECURITY, SAMPLING)
def serve(flags: Flags, models: Models = None) -> None:
    """Serve models over HTTP, as OpenAI, Anthropic, Ollama and llama-server do.

    Models that are named are loaded at once, as far as they fit; all others when they are asked for, and others leave
    for them. Ctrl-C lets running requests end, and stops.

    The sampling options hold for requests that say nothing, unless the model itself recommends something else.
    """
    from stoker.engine import garbage, spare
    from stoker.serving import create_registry, run_server

    config = flags.load()
    registry = create_registry(config, models or [], progress=DownloadBar())
    registry.events.listen(_say_plan)
    names = [status.model_id for status in registry.statuses()] or [config.registry.models_dir]

    def on_ready(url: str) -> None:
        spare.discard()  # there was nothing to load yet, or somebody else computes
        garbage.settle()
        say(f"ready: {', '.join(names)} {'is' if len(names) == 1 else 'are'} served at {url}")

    run_server(registry, config, on_ready)


def _say_plan(event: ModelEvent) -> None:
    if event.plan is not None:
        say(f"loading {event.model}: takes {event.plan}")
