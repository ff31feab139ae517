"""The heap of this process: of this room, because it has the extension."""

from __future__ import annotations

from stoker._native import trim_heap

__all__ = ["trim_heap"]
