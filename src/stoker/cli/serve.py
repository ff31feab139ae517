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
    """Serve models over HTTP. It speaks the APIs of OpenAI, Anthropic, Ollama and llama-server.

    Named models are loaded at start, as far as they fit into memory; other models are loaded on demand, and idle ones
    are unloaded to make room. Ctrl-C lets running requests finish, and stops the server.

    Sampling options are defaults for requests that do not set them, unless the model recommends other values.
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
