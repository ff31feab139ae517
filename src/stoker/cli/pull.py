"""`stoker pull`: brings a model onto this disk."""

from __future__ import annotations

from stoker.cli.answer import write
from stoker.cli.download_bar import DownloadBar
from stoker.cli.options import Flags, Model, shared_options


@shared_options()
def pull(flags: Flags, model: Model) -> None:
    """Download a model if needed and print its path."""
    from stoker.models.store import resolve

    write(f"{resolve(model, progress=DownloadBar())}\n")
