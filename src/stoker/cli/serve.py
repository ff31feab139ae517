"""`stoker serve`: a model behind HTTP."""

from __future__ import annotations

from stoker.cli.download_bar import DownloadBar
from stoker.cli.options import ENGINE, SAMPLING, SECURITY, SERVER, Flags, Model, shared_options
from stoker.cli.report import say


@shared_options(ENGINE, SERVER, SECURITY, SAMPLING)
def serve(flags: Flags, model: Model) -> None:
    """Serve a model over HTTP, as OpenAI, Anthropic, Ollama and llama-server do.

    Ctrl-C lets running requests end, and stops.

    The sampling options hold for requests that say nothing, unless the model itself recommends something else.
    """
    import msgspec

    from stoker.assembly import local_model, run_server

    config = flags.load()
    engine = local_model(msgspec.structs.replace(config.engine, model=model), progress=DownloadBar())
    name = engine.name or model
    run_server(engine, config.server, config.supervision, lambda url: say(f"ready: {name} is served at {url}"))
