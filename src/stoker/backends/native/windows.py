"""Layers that see only a window: which pages of a slot they need, and whether these lie apart. It touches no memory."""

from __future__ import annotations

from stoker.backends.native.options import NativeOptions
from stoker.backends.native.pages import PAGE_TOKENS
from stoker.backends.native.spec import DecoderSpec
from stoker.core.model_info import WindowPool

MAX_DRAFT = 63
"""Entries that a window, or a state, can be cut back by."""


def window_of(spec: DecoderSpec) -> int:
    """The largest window of any layer; 0 = there is none."""
    return max((layer.window or 0 for layer in spec.layers), default=0)


def window_head_sizes(spec: DecoderSpec) -> list[int]:
    """The size of each head of keys and values in layers with a window."""
    windowed = [layer for layer in spec.layers if layer.window is not None and layer.kv_layer is None]
    all_heads = [layer.heads for layer in windowed if layer.heads is not None]
    return [heads.size for heads in all_heads for _ in range(heads.num_kv)]


def has_window_pages(spec: DecoderSpec) -> bool:
    """Whether layers with a window can have pages of their own, so that they keep less than the others."""
    num_windowed = len(window_head_sizes(spec))
    return 0 < num_windowed < len(spec.kv_head_sizes) and not spec.sees_ahead and not spec.state_bytes


def kept_positions(window: int) -> int:
    """Positions before the end of a slot that are needed again: what a draft is cut back to still sees its window."""
    return window - 1 + MAX_DRAFT


def window_reach(window: int) -> int:
    """Positions before the end of a slot whose pages it holds, at most."""
    return kept_positions(window) + PAGE_TOKENS - 1


def plan_windows(spec: DecoderSpec, options: NativeOptions) -> WindowPool | None:
    """The pool of layers with a window, if one is wanted, and if other layers keep every position."""
    reach = window_reach(window_of(spec))
    if not options.window_tokens or not has_window_pages(spec) or options.context_size <= reach:
        return None
    return WindowPool(capacity=min(options.window_tokens, options.kv_tokens), reach=reach)
