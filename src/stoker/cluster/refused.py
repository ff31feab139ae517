"""Settings of `stoker serve` that a cluster refuses, and why. The command's help leaves them out by the same table."""

from __future__ import annotations

from collections.abc import Mapping

_PLAIN_HTTP = "Ray's entrance speaks plain HTTP: end TLS before it, or between it and the world"
_REPLICAS = "replicas of a model come and go by --replicas MIN-MAX, and with 0-MAX the last one leaves an idle model"

REFUSED: Mapping[str, str] = {
    "models_dir": "a cluster serves the models that are named: each has replicas of its own",
    "unix_socket": "a cluster is reached over the network",
    "root_path": "give the prefix to what stands before the cluster",
    "slot_save_path": "a slot belongs to one replica; keep KV in a folder that all nodes see (--kv-dir)",
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
"""By the key of the setting. A value that is the default is accepted."""
