"""`stoker cp`: gives a model another name."""

from __future__ import annotations

from typing import Annotated

import typer

from stoker.cli.later import aliases, presets, store
from stoker.cli.options import Flags, Model, shared_options
from stoker.cli.report import say
from stoker.cli.server_client import ApiKey, OtherUrl, ServerClient
from stoker.models.naming import own_name

NewName = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The new name.")]


@shared_options()
def cp(flags: Flags, model: Model, name: NewName, url: OtherUrl = None, api_key: ApiKey = None) -> None:
    """Add another name for a model. A preset is copied; the files of a model are not."""
    if url is None:
        _copy(own_name(model), own_name(name))
    else:
        ServerClient(url, api_key).post("/api/copy", {"source": model, "destination": name})
    say(f"{name} is another name of {model}")


def _copy(model: str, name: str) -> None:
    preset = presets.read_presets().get(model)
    if preset is None:
        aliases.add_alias(name, store.lasting_name(model))
    else:
        presets.write_preset(name, preset)
