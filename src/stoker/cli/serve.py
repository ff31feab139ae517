"""`stoker serve`: serves models over HTTP."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stoker.cli.announce import announce
from stoker.cli.download_bar import DownloadBar
from stoker.cli.later import serving, settings
from stoker.cli.log_files import kept_log
from stoker.cli.options import (
    ENGINE,
    MODELS,
    SAMPLING,
    SECURITY,
    SERVER,
    Flags,
    Models,
    check_cache_dir,
    say_misspelled,
    shared_options,
)
from stoker.cli.report import say
from stoker.cli.serve_log import request_lines, say_ready, say_stopping
from stoker.engine import garbage, spare

if TYPE_CHECKING:
    import logging

    from stoker.runtime.model_events import ModelEvent


@shared_options(ENGINE, SERVER, MODELS, SECURITY, SAMPLING)
def serve(flags: Flags, models: Models = None) -> None:
    """Serve models over HTTP. Clients can use the APIs of OpenAI, Anthropic, Ollama and llama-server.

    Named models are loaded at startup, as far as they fit into memory. Other models are loaded on demand, and idle
    models are unloaded to make room. Without MODEL, all pulled models are served. Ctrl-C stops the server after running
    requests have finished.

    Sampling options are defaults for requests that do not set them, unless the model recommends other values.
    """
    config = flags.load()
    say_misspelled(config)
    check_cache_dir(config.engine.kv_cache_dir)
    for model in models or []:
        announce(model)
    with kept_log(str(config.server.port or f"process-{os.getpid()}")) as kept:
        _serve(config, models or [], kept)


def _serve(config: settings.Config, models: list[str], kept: logging.Handler | None) -> None:
    registry = serving.create_registry(config, models, progress=DownloadBar())
    registry.events.listen(_say_plan)
    named = [status.model_id for status in registry.statuses()]

    def on_ready(url: str) -> None:
        spare.discard()  # not taken if there was no model to load yet, or llama-server or vLLM computes
        garbage.settle()
        found = [status.model_id for status in registry.statuses()]
        names = named or [name for name in [config.registry.models_dir] if name] or found
        say_ready(names, url, keeps_cache=bool(config.engine.kv_cache_dir))

    with request_lines(kept, is_json=config.server.log_format == "json"):
        serving.run_server(registry, config, on_ready, say_stopping)


def _say_plan(event: ModelEvent) -> None:
    if event.plan is not None:
        say(f"loading {event.model}: takes {event.plan}")
