"""`stoker cluster`: serves models over HTTP on several machines, with Ray."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from stoker.cli.announce import announce
from stoker.cli.answer import write
from stoker.cli.command import Command
from stoker.cli.later import cluster_config, cluster_local, keys, listener
from stoker.cli.options import (
    ENGINE,
    MODELS,
    SAMPLING,
    SECURITY,
    SERVER,
    Flags,
    Models,
    check_cache_dir,
    shared_options,
)
from stoker.cli.report import EXIT_CODES, say
from stoker.cli.serve_log import say_ready
from stoker.cli.server_client import ApiKey, ServerClient, Url
from stoker.cli.table import AsJson, print_rows
from stoker.cluster import REPLICA_PORTS
from stoker.cluster.refused import REFUSED

if TYPE_CHECKING:
    from stoker.cluster.config import ClusterFields

cluster = typer.Typer(no_args_is_help=True, help="Serve models on several machines, with Ray.", epilog=EXIT_CODES)

_PANEL = "Cluster"
_COLUMNS = {
    "model": "MODEL",
    "replica": "REPLICA",
    "node": "NODE",
    "state": "STATE",
    "running": "RUNNING",
    "waiting": "WAITING",
    "kv": "KV",
    "cached": "CACHED",
    "restarts": "RESTARTS",
}
Fronts = Annotated[
    int,
    typer.Option("--fronts", rich_help_panel=_PANEL, help="Number of HTTP server processes; two for availability."),
]
Address = Annotated[
    str,
    typer.Option(
        "--address",
        metavar="auto|HOST:PORT",
        show_default=False,
        rich_help_panel=_PANEL,
        help="Running Ray cluster to join. [default: start one on this machine]",
    ),
]
KVDir = Annotated[
    str,
    typer.Option(
        "--kv-dir",
        metavar="FOLDER",
        show_default=False,
        rich_help_panel=_PANEL,
        help="Folder for all nodes, or object store (s3://BUCKET), for a shared KV cache. Same as --cache-dir.",
    ),
]

KVEvents = Annotated[
    bool,
    typer.Option(
        "--kv-events",
        rich_help_panel=_PANEL,
        help="Publish the KV cache blocks of each replica in vLLM's format, for other routers.",
    ),
]

ReplicaPorts = Annotated[
    str,
    typer.Option(
        "--replica-ports",
        metavar="FIRST-LAST",
        rich_help_panel=_PANEL,
        help="Ports for connections of fronts, one for each replica of a node; '' = all messages go through Ray Serve.",
    ),
]


@cluster.command(cls=Command, epilog=EXIT_CODES)
@shared_options(ENGINE, SERVER, MODELS, SECURITY, SAMPLING, hidden=REFUSED)
def serve(
    flags: Flags,
    models: Models = None,
    fronts: Fronts = 1,
    address: Address = "",
    kv_dir: KVDir = "",
    kv_events: KVEvents = False,
    replica_ports: ReplicaPorts = REPLICA_PORTS,
) -> None:
    """Serve models on the machines of a Ray cluster.

    Without --address, Ray is started on this machine. Each model has --replicas engines, on any node. Ctrl-C
    stops everything that was started, after running requests have finished.
    """
    found = _cluster(flags, models or [], fronts, kv_dir, kv_events=kv_events, replica_ports=replica_ports)
    if address:
        found.check_kv_type()
    else:
        for spec in found.engines():
            spec.model_spec()  # reports a faulty model on this machine before Ray starts
    for model in models or []:
        announce(model)
    running = cluster_local.LocalCluster(found, address)
    try:
        with cluster_local.stoppable():
            running.start()
            running.wait_until_ready()
            say_ready([spec.names[0] for spec in found.engines()], running.url)
            cluster_local.wait_for_signal()
        say("stopping: running requests are finished")
    finally:
        running.close()


@cluster.command(cls=Command, epilog=EXIT_CODES)
@shared_options(ENGINE, SERVER, MODELS, SECURITY, SAMPLING, hidden=REFUSED)
def config(
    flags: Flags,
    models: Models = None,
    fronts: Fronts = 1,
    kv_dir: KVDir = "",
    kv_events: KVEvents = False,
    replica_ports: ReplicaPorts = REPLICA_PORTS,
) -> None:
    """Print a configuration for `serve deploy` or a RayService on Kubernetes.

    Its first lines list the environment variables that every Ray node needs.
    """
    found = _given(flags, models or [], fronts, kv_dir, kv_events=kv_events, replica_ports=replica_ports)
    write("# The environment of every node, before Ray starts:\n")
    write("".join(f"#   {name}={value}\n" for name, value in cluster_config.ENVIRONMENT.items()))
    write("#   RAY_AUTH_MODE=token\n")
    write(cluster_config.as_yaml(found.as_document()))


@cluster.command(cls=Command, epilog=EXIT_CODES)
@shared_options()
def status(flags: Flags, url: Url = None, api_key: ApiKey = None, as_json: AsJson = False) -> None:
    """List the replicas of a running cluster. The list shows nodes, requests, and cache hits."""
    health = ServerClient(url, api_key).get("/health")
    rows = [_row(str(model["id"]), replica) for model in health.get("models", []) for replica in _replicas(model)]
    print_rows(_COLUMNS, rows, is_json=as_json)


def _replicas(model: dict[str, Any]) -> list[dict[str, Any]]:
    """The replicas of a model; a model without replicas at present gets one entry, with its own state."""
    found: list[dict[str, Any]] = model.get("replicas") or [{**model, "id": None}]
    return found


def _row(model: str, replica: dict[str, Any]) -> dict[str, Any]:
    prompt, capacity = replica.get("prompt_tokens"), replica.get("kv_capacity")
    return {
        "model": model,
        "replica": replica["id"],
        "node": replica.get("node"),
        "state": replica["state"],
        "running": replica.get("num_running"),
        "waiting": replica.get("num_waiting"),
        "kv": _percent(replica.get("kv_used", 0), capacity),
        "cached": _percent(replica.get("cached_tokens", 0), prompt),
        "restarts": replica["num_restarts"],
    }


def _percent(part: int, whole: int | None) -> str | None:
    """
    >>> _percent(1, 3), _percent(0, 0), _percent(0, None)
    ('33 %', None, None)
    """
    return f"{100 * part / whole:.0f} %" if whole else None


def _cluster(
    flags: Flags, models: list[str], fronts: int, kv_dir: str, **fields: Unpack[ClusterFields]
) -> cluster_config.ClusterConfig:
    """The cluster that is started from this machine, after checks of its exposure, cache folder and models."""
    found = _given(flags, models, fronts, kv_dir, **fields)
    config = found.load()
    listener.check_exposure(config.server, keys.ApiKeys(config.server))
    check_cache_dir(config.engine.kv_cache_dir)
    found.engines()
    return found


def _given(
    flags: Flags, models: list[str], fronts: int, kv_dir: str, **fields: Unpack[ClusterFields]
) -> cluster_config.ClusterConfig:
    if kv_dir:
        flags = replace(flags, values={**flags.values, "kv_cache_dir": kv_dir})
    return cluster_config.ClusterConfig.of(flags.load(), models, fronts, **fields)
