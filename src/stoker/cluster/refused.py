"""Settings of `stoker serve` that a cluster refuses, and why. The help of `stoker cluster` leaves them out, too."""

from __future__ import annotations

from collections.abc import Mapping

_NO_FILES = "the fronts have no common folder for files and batches of clients"
_PLAIN_HTTP = "Ray's proxy speaks plain HTTP: terminate TLS in front of the cluster"
_REPLICAS = "--replicas MIN-MAX starts and stops replicas instead; with 0-MAX, an idle model has none"

REFUSED: Mapping[str, str] = {
    "files_dir": _NO_FILES,
    "files_mib": _NO_FILES,
    "models_dir": "a cluster serves only the named models",
    "unix_socket": "a cluster is reached over the network",
    "root_path": "set the prefix in the proxy in front of the cluster",
    "slot_save_path": "a slot belongs to one replica; keep KV in a folder for all nodes (--kv-dir)",
    "tls_certificate": _PLAIN_HTTP,
    "tls_key": _PLAIN_HTTP,
    "pin": _REPLICAS,
    "keep_alive": _REPLICAS,
    "models_max": _REPLICAS,
    "autoload": _REPLICAS,
    "swap_after_s": _REPLICAS,
    "swap_after_requests": _REPLICAS,
    "swap_drain_s": _REPLICAS,
}
"""Reasons by the key of the setting. A setting with its default value is accepted."""
