"""Models whose replicas run on many machines, on Ray Serve. The only room that imports Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.lazy import lazy_names

if TYPE_CHECKING:
    from stoker.cluster.app import build

__all__ = ["build"]

__getattr__ = lazy_names(__name__, {"build": "stoker.cluster.app"})
