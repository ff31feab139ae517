"""Compiled passes over rows of logits, for samplers: they lie here because this room has the extension."""

from __future__ import annotations

from stoker._native import RowSampler

__all__ = ["RowSampler"]
