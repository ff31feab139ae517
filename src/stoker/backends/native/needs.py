"""The memory that a model will need, and whether it is supported, from its file alone before anything is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import ceil

from stoker.backends.cores import usable_cores
from stoker.backends.native.architectures import describe_decoder
from stoker.backends.native.file import ModelFile, ModelParts
from stoker.backends.native.kv_types import KVType, can_hold, choose_kv_type, element_bytes
from stoker.backends.native.layer_parts import Experts
from stoker.backends.native.layout import Layout, plan_layout
from stoker.backends.native.pages import PAGE_TOKENS, num_pages, pages_for
from stoker.backends.native.spec import DecoderSpec
from stoker.backends.native.windows import has_window_pages, window_head_sizes, window_of, window_reach

_SPAN_TOKENS, _MAX_SPAN_BYTES, _PIECES_PER_THREAD, _ATTENTION_ROWS = 512, 16 << 20, 4, 64
"""How attention over a long context is split into pieces; see native/attention.hpp and plan.cpp."""
_TILE_ROWS = 16
_COMPUTE_ROWS = 512
"""Rows that are computed at once. Each has separate results of its experts until these are added."""


def plan_model(files: Sequence[ModelFile], context_size: int) -> tuple[DecoderSpec, Layout, ModelParts]:
    """Returns the description of a model, its layout in packed memory, and its files as one.

    Args:
        files: all parts of the model, open.
        context_size: length of the longest sequence, in tokens.

    Raises:
        ModelUnsupported: this backend does not run it.
        ModelFileInvalid: the file contradicts itself.
    """
    parts = ModelParts(files)
    spec = describe_decoder(parts, context_size)
    return spec, plan_layout(spec, parts), parts


class NativeNeeds:
    """What a model needs on this backend, from its files alone; nothing is loaded. An encoder needs no KV and no state.

    Args:
        files: all parts of the model, open.

    Raises:
        ModelUnsupported: this backend does not run it; the message says why.
        ModelFileInvalid: the file contradicts itself.
    """

    def __init__(self, files: Sequence[ModelFile]) -> None:
        self._spec, layout, _ = plan_model(files, context_size=1)
        self.weights_bytes = layout.num_bytes
        """Bytes of the packed weights, without tensors that no part of the model uses."""
        self.is_encoder = self._spec.sees_ahead
        """Attention is bidirectional, so the model embeds texts and cannot generate."""
        self.state_bytes = 0 if self.is_encoder else self._spec.state_bytes
        """Bytes of recurrent state for each sequence."""

    def can_have(self, kv_type: KVType) -> bool:
        """Whether the model's heads are small enough for this KV cache type."""
        return can_hold(kv_type, self._spec.largest_head)

    def kv_bytes(self, kv_type: KVType | None, *, with_head: bool = False) -> int:
        """Bytes of KV for each token.

        Args:
            kv_type: as in `NativeOptions`.
            with_head: whether the KV of the draft head counts, if the model has one.

        Raises:
            ConfigError: the model cannot have this KV cache type.
        """
        spec = self._spec
        chosen = choose_kv_type(kv_type, spec.largest_head)
        if self.is_encoder:
            return 0
        head = () if spec.draft_head is None or not with_head else spec.draft_head.kv_head_sizes
        return _kv_bytes((*spec.kv_head_sizes, *head), chosen)

    def window_bytes(self, kv_type: KVType | None) -> tuple[int, int]:
        """Bytes of KV for each token in layers with a sliding window, and for how many tokens of a sequence at most.
        Both are 0 if these layers have no separate pool but keep all tokens: there are no other layers, or a recurrent
        layer has to be recomputed wherever a window has to. Arguments and errors are those of `kv_bytes`.
        """
        if not has_window_pages(self._spec):
            return 0, 0
        chosen = choose_kv_type(kv_type, self._spec.largest_head)
        return _kv_bytes(window_head_sizes(self._spec), chosen), window_reach(window_of(self._spec))

    def context_bytes(self, threads: int | None, num_slots: int) -> Callable[[int], int]:
        """Returns a function from a number of positions to the bytes that such a context needs besides KV: for tables
        of rotations and of pages, and for buffers of attention, experts and streams.

        Args:
            threads: as in `NativeOptions`.
            num_slots: as in `NativeOptions`.
        """
        spec = self._spec
        all_heads = [layer.heads for layer in spec.layers if layer.heads is not None]
        most_shared = max((heads.num // heads.num_kv for heads in all_heads), default=0)
        rows = (threads or usable_cores()) * max(_ATTENTION_ROWS, most_shared)
        span_bytes = _PIECES_PER_THREAD * rows * 4 * (spec.largest_head + _TILE_ROWS)
        of_experts = _COMPUTE_ROWS * max((_expert_bytes(layer.experts, spec) for layer in spec.layers), default=0)
        of_rows = of_experts + _COMPUTE_ROWS * _stream_bytes(spec)

        def needed(num_positions: int) -> int:
            spans = min(_MAX_SPAN_BYTES, (num_positions // _SPAN_TOKENS + 1) * span_bytes)
            num_decoders = 1 if spec.draft_head is None else 2
            tables = num_decoders * num_positions * sum(4 * rope.dim for rope in spec.ropes)
            return tables + 4 * num_slots * pages_for(num_positions) + spans + of_rows

        return needed


def head_kv_bytes(head: DecoderSpec, spec: DecoderSpec, kv_type: KVType | None) -> int:
    """Bytes of KV for each token of a draft head in a file of its own; the KV cache type is the target model's."""
    return _kv_bytes(head.kv_head_sizes, choose_kv_type(kv_type, spec.largest_head))


def spare_kv_tokens(num_slots: int) -> int:
    """Tokens of KV memory, at most, that partly filled pages need beyond the size of the pool."""
    return num_pages(kv_tokens=1, num_slots=num_slots) * PAGE_TOKENS


def _kv_bytes(head_sizes: Sequence[int], kv_type: KVType) -> int:
    """Bytes of keys and values of one token."""
    return ceil(sum(2 * num * size * element_bytes(kv_type, size) for size, num in Counter(head_sizes).items()))


def _stream_bytes(spec: DecoderSpec) -> int:
    """Bytes for one row: its streams and their updates, gates with a threshold (`gate_cut`), and their factors."""
    streams = 0 if spec.streams is None else 2 * spec.streams.count * spec.hidden_size
    cut = max((layer.feed_forward_size for layer in spec.layers if layer.gate_cut is not None), default=0)
    return 4 * (streams + 2 * cut)


def _expert_bytes(experts: Experts | None, spec: DecoderSpec) -> int:
    """Bytes for the results of the experts of one row, and for the inputs of their last products."""
    return 0 if experts is None else experts.used * (4 * spec.hidden_size + 2 * experts.size)
