"""Layers with a sliding window: which positions they keep, whether they have separate pages. It touches no memory."""

from __future__ import annotations

from stoker.backends.native.options import NativeOptions
from stoker.backends.native.pages import PAGE_TOKENS
from stoker.backends.native.spec import DecoderSpec
from stoker.core.model_info import WindowPool

MAX_DRAFT = 63
"""Maximum number of drafted entries that a slot with windows or recurrent states can be cut back by."""


def window_of(spec: DecoderSpec) -> int:
    """The largest sliding window of any layer, in positions; 0 = no layer has a window."""
    return max((layer.window or 0 for layer in spec.layers), default=0)


def window_head_sizes(spec: DecoderSpec) -> list[int]:
    """The size of each head of keys and values in layers with a window."""
    windowed = [layer for layer in spec.layers if layer.window is not None and layer.kv_layer is None]
    all_heads = [layer.heads for layer in windowed if layer.heads is not None]
    return [heads.size for heads in all_heads for _ in range(heads.num_kv)]


def has_window_pages(spec: DecoderSpec) -> bool:
    """Whether layers with a window can have separate pages, so that they keep fewer positions than other layers."""
    num_windowed = len(window_head_sizes(spec))
    return 0 < num_windowed < len(spec.kv_head_sizes) and not spec.sees_ahead and not spec.state_bytes


def kept_positions(window: int) -> int:
    """Positions before a slot's end that must be kept: after a rollback a new position still sees its whole window."""
    return window - 1 + MAX_DRAFT


def window_reach(window: int) -> int:
    """Maximum number of positions before the end of a slot whose window pages the slot holds."""
    return kept_positions(window) + PAGE_TOKENS - 1


def plan_windows(spec: DecoderSpec, options: NativeOptions) -> WindowPool | None:
    """The KV pool of layers with a window; None if none is wanted, possible, or smaller than keeping every position."""
    reach = window_reach(window_of(spec))
    if not options.window_tokens or not has_window_pages(spec) or options.context_size <= reach:
        return None
    return WindowPool(capacity=min(options.window_tokens, options.kv_tokens), reach=reach)
