"""`stoker pull`: downloads a model and packs its weights, so that it is ready to start."""

from __future__ import annotations

from typing import Annotated

import typer

from stoker.cli.announce import announce
from stoker.cli.answer import write
from stoker.cli.download_bar import DownloadBar
from stoker.cli.later import preparing, store
from stoker.cli.options import Flags, Model, shared_options
from stoker.cli.report import say

Pack = Annotated[
    bool,
    typer.Option(
        "--pack/--no-pack",
        help="Pack the weights of a GGUF model for the native backend, for a fast first start.",
    ),
]


@shared_options()
def pull(flags: Flags, model: Model, pack: Pack = True) -> None:
    """Download a model if needed, pack its weights, and print its path."""
    announce(model)
    bar = DownloadBar()
    try:
        path = store.resolve(model, progress=bar)
    except KeyboardInterrupt:
        bar.close()
        say("stopped; run it again to resume the download")
        raise
    if pack and path.is_file():
        preparing.pack_gguf(path, DownloadBar())
    write(f"{path}\n")
