"""What the extension computes for other rooms: it is imported in this room alone."""

from __future__ import annotations

from stoker._native import RowSampler, trim_heap

__all__ = ["RowSampler", "trim_heap"]
