"""`stoker rm`: removes downloads, other names and presets."""

from __future__ import annotations

from typing import Annotated

import typer

from stoker.cli.later import removal
from stoker.cli.options import Flags, shared_options
from stoker.cli.report import say
from stoker.cli.server_client import ApiKey, OtherUrl, ServerClient
from stoker.models.naming import own_name

Names = Annotated[list[str], typer.Argument(metavar="MODEL...", show_default=False, help="Names from `stoker list`.")]


@shared_options()
def rm(flags: Flags, models: Names, url: OtherUrl = None, api_key: ApiKey = None) -> None:
    """Remove downloaded models, additional names and presets. Files outside the download cache are not deleted."""
    client = None if url is None else ServerClient(url, api_key)
    for model in models:
        if client is None:
            removal.remove_model(own_name(model))
        else:
            client.send("DELETE", "/api/delete", {"model": model})
        say(f"removed {model}")
