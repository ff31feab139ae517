"""`stoker ps`: the models that a running server has loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stoker.cli.options import Flags, shared_options
from stoker.cli.server_client import ApiKey, ServerClient, Url
from stoker.cli.table import AsJson, print_rows

_COLUMNS = {
    "model": "MODEL",
    "state": "STATE",
    "memory_bytes": "MEMORY",
    "context": "CONTEXT",
    "running": "RUNNING",
    "waiting": "WAITING",
    "unloads_in": "UNLOADS IN",
}


@shared_options()
def ps(flags: Flags, url: Url = None, api_key: ApiKey = None, as_json: AsJson = False) -> None:
    """List the models that a server has loaded. The list shows memory, requests, and when each is unloaded."""
    client = ServerClient(url, api_key)
    busy = {str(model["id"]): model for model in client.get("/health").get("models", [])}
    rows = (_row(entry, busy.get(str(entry["id"]), {})) for entry in _loaded(client.get("/v1/models")))
    print_rows(_COLUMNS, rows, is_json=as_json)


def _loaded(listed: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for entry in listed.get("data", []):
        if entry.get("status", {}).get("value", "loaded") != "unloaded" and not entry.get("parent"):
            yield entry


def _row(entry: dict[str, Any], health: dict[str, Any]) -> dict[str, Any]:
    status: dict[str, Any] = entry.get("status", {})
    return {
        "model": entry["id"],
        "state": status.get("value", "loaded"),
        "memory_bytes": status.get("memory", {}).get("total"),
        "context": entry.get("max_model_len"),
        "running": health.get("num_running"),
        "waiting": health.get("num_waiting", status.get("waiting")),
        "unloads_in": _time(status.get("expires_in_s")),
    }


def _time(seconds: float | None) -> str:
    """
    >>> _time(None), _time(42.0), _time(300.0)
    ('never', '42 s', '5 min')
    """
    if seconds is None:
        return "never"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
