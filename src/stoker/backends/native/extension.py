"""Parts of the extension `stoker._native` that other folders use; only this folder imports the extension itself."""

from __future__ import annotations

from stoker._native import RowSampler, trim_heap

__all__ = ["RowSampler", "trim_heap"]
