"""Compiled passes over rows of logits, for whoever samples from them: of this room, because it has the extension."""

from __future__ import annotations

from stoker._native import RowSampler

__all__ = ["RowSampler"]
