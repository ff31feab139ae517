"""Creates the C++ decoders over packed weights: of a model, and of its draft head. It runs no forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from stoker import _native
from stoker.backends.native.batch_arrays import BatchArrays
from stoker.backends.native.decoder import describe
from stoker.backends.native.draft_head import DraftHead
from stoker.backends.native.kv_pages import KVPages
from stoker.backends.native.kv_types import KVType
from stoker.backends.native.lent_head import LentHead
from stoker.backends.native.pages import PAGE_TOKENS
from stoker.backends.native.spec import DecoderSpec
from stoker.backends.native.threads import Threads
from stoker.backends.native.weights import Weights
from stoker.core.model_info import ModelInfo
from stoker.errors import ResourceExhausted


@dataclass(frozen=True, slots=True, eq=False)
class HeadParts:
    """The parts from which a draft head is created."""

    spec: DecoderSpec
    weights: Weights
    lender: Weights | None = None
    """Weights of the target model, if the head has weights of its own and uses some of the model's."""
    token_ids: NDArray[np.int64] | None = None
    """The target model's token for each entry of the head's vocabulary; None = the vocabularies are equal."""
    name: str = "a draft head"
    """What the head adds to `ModelInfo.kv_format` if it has KV."""


def open_decoders(
    spec: DecoderSpec,
    head: HeadParts | None,
    weights: Weights,
    info: ModelInfo,
    pages: KVPages,
    kv_type: KVType,
    threads: Threads,
) -> list[_native.Decoder]:
    """Returns the decoder of the model, then that of its draft head if there is one.

    Raises:
        ResourceExhausted: keys and values do not fit into memory.
    """
    if head is not None:
        spec = replace(spec, extracted_layers=head.spec.extracted_layers)
    sizes = (info, kv_type, threads)
    model = _decoder(spec, weights, None, None, (pages.num_pages, pages.num_window_pages), *sizes)
    if head is None:
        return [model]
    own = replace(head.spec, extracted_layers=())
    lender = model if own.borrows_keys else None
    return [model, _decoder(own, head.weights, head.lender, lender, (pages.num_pages, 0), *sizes)]


def with_sizes(info: ModelInfo, decoders: Sequence[_native.Decoder], head: HeadParts | None) -> ModelInfo:
    """`info` with the bytes of KV and state that the decoders, of a model and its draft head, if any, have."""
    (model, *heads), windows = decoders, info.windows
    keeps_some = any(head.page_bytes for head in heads)
    if windows is not None:
        windows = replace(windows, bytes_per_cell=model.window_page_bytes // PAGE_TOKENS)
    return replace(
        info,
        kv_bytes_per_token=sum(decoder.page_bytes for decoder in decoders) // PAGE_TOKENS,
        state_bytes_per_slot=2 * model.state_bytes,
        kv_format=f"{info.kv_format} with {head.name}" if head is not None and keeps_some else info.kv_format,
        windows=windows,
    )


def open_head(
    decoder: _native.Decoder,
    head: HeadParts,
    info: ModelInfo,
    arrays: BatchArrays,
    pages: KVPages,
    decoders: Sequence[_native.Decoder],
) -> DraftHead | LentHead:
    """Returns a draft head that is ready to draft.

    Args:
        decoder: the decoder of the head.
        head: the parts from which the decoder was created.
        info: sizes of the target model.
        arrays: the arrays to which batches are written.
        pages: the KV pages of the target model.
        decoders: the decoders that have a part in each page.
    """
    if head.spec.borrows_keys:
        return LentHead(decoder, head.spec, info, arrays, pages)
    copy_page = partial(pages.copy_page, decoders)
    return DraftHead(decoder, head.spec, head.token_ids, info, arrays, pages.ledger, copy_page)


def _decoder(
    spec: DecoderSpec,
    weights: Weights,
    lent: Weights | None,
    lender: _native.Decoder | None,
    num_pages: tuple[int, int],
    info: ModelInfo,
    kv_type: KVType,
    threads: Threads,
) -> _native.Decoder:
    try:
        return _native.Decoder(
            describe(spec, weights.layout, info.max_sequence_tokens),
            weights.memory,
            num_pages=num_pages[0],
            num_window_pages=num_pages[1],
            num_states=info.num_slots if spec.state_bytes else 0,
            max_batch_tokens=info.max_batch_tokens,
            num_threads=threads.count,
            kv_type=kv_type,
            cores=threads.cores,
            cpus=threads.cpus,
            lent=None if lent is None else lent.memory,
            lender=lender,
        )
    except MemoryError as error:
        raise ResourceExhausted(
            f"{info.kv_tokens} tokens of KV do not fit into memory; give fewer with --kv-tokens",
            kv_tokens=info.kv_tokens,
        ) from error
