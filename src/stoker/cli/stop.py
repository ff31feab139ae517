"""`stoker stop`: unloads a model of a running server."""

from __future__ import annotations

from typing import Annotated

import typer

from stoker.cli.options import Flags, shared_options
from stoker.cli.report import say
from stoker.cli.server_client import ApiKey, ServerClient, Url
from stoker.models.naming import own_name

Served = Annotated[str, typer.Argument(metavar="MODEL", show_default=False, help="Name from `stoker ps`.")]


@shared_options()
def stop(flags: Flags, model: Served, url: Url = None, api_key: ApiKey = None) -> None:
    """Unload a model from a running server. It finishes its running requests first; the next request loads it again."""
    body = {"model": own_name(model), "wait": True}
    ServerClient(url, api_key).post("/models/unload", body, is_long=True)
    say(f"unloaded {model}")
