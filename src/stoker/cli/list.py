"""`stoker list`: the models on this disk, or those that a server serves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.cli.later import discovery, presets, store
from stoker.cli.options import Flags, shared_options
from stoker.cli.report import say
from stoker.cli.server_client import ApiKey, OtherUrl, ServerClient
from stoker.cli.table import AsJson, print_rows

_COLUMNS = {"model": "MODEL", "aliases": "ALSO CALLED", "size_bytes": "SIZE", "modified": "MODIFIED"}
_SERVED = {"model": "MODEL", "aliases": "ALSO CALLED", "size_bytes": "SIZE", "state": "STATE"}


@shared_options()
def list_models(flags: Flags, url: OtherUrl = None, api_key: ApiKey = None, as_json: AsJson = False) -> None:
    """List downloaded models and presets. With --url, the models of a server."""
    if url is None:
        rows = list(_on_disk())
        print_rows(_COLUMNS, rows, is_json=as_json)
        if not rows and not as_json:
            say("note: no model is here yet: `stoker pull MODEL` downloads one of `stoker models --all`")
    else:
        print_rows(_SERVED, _served(ServerClient(url, api_key)), is_json=as_json)


def _on_disk() -> Iterator[dict[str, Any]]:
    known = presets.read_presets()
    for found in discovery.discover_models(None):
        first, *others = sorted(found.names, key=lambda name: name.startswith("hf:"))
        preset = known.get(first)
        yield {
            "model": first,
            "aliases": others,
            "size_bytes": None if preset else _size(found.path),
            "modified": time.strftime("%Y-%m-%d", time.localtime(found.path.stat().st_mtime)),
            **({"based_on": preset.model} if preset else {"path": str(found.path)}),
        }


def _size(path: Path) -> int | None:
    return store.size_of_all(store.downloaded_parts(path))


def _served(client: ServerClient) -> Iterator[dict[str, Any]]:
    for entry in client.get("/v1/models").get("data", []):
        yield {
            "model": entry["id"],
            "aliases": entry.get("aliases", []),
            "size_bytes": entry.get("meta", {}).get("size"),
            "state": entry.get("status", {}).get("value"),
        }
