"""Serves models whose replicas run on several machines, with Ray Serve. Only this package imports Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.lazy import lazy_names

if TYPE_CHECKING:
    from stoker.cluster.app import build

__all__ = ["REPLICA_PORTS", "build"]

REPLICA_PORTS = "31001-31999"
"""Default of `ClusterConfig.replica_ports`: above the ports of Ray, and below those of outgoing connections."""

__getattr__ = lazy_names(__name__, {"build": "stoker.cluster.app"})
