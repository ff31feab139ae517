"""Sizes, limits and abilities of a loaded model and of its KV cache, as its backend reports them once."""

from __future__ import annotations

from dataclasses import dataclass

_LEAST_PART = 4
_LEAST_CELLS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTraits:
    """What a backend's KV cache can do. The scheduler asks these, never which class a backend is."""

    can_truncate: bool
    """A slot can be cut back to any shorter length (false for recurrent and hybrid models)."""
    truncatable_tail: int = 0
    """Without `can_truncate`: maximum number of drafted entries per chunk. Rejected ones can be cut off again before
    anything else is computed in the slot, if `Batch.num_drafted` announced them."""
    can_copy: bool
    """A prefix of one slot can be copied into another, empty slot."""
    copies_whole: bool = False
    """A slot can only be copied as a whole, not a shorter prefix. Without `can_truncate`, a later prompt can continue
    only where some slot ends; checkpoints are such slots (docs/adr/0034)."""
    shares_cells: bool
    """A copied prefix occupies no cells of its own until it diverges."""
    can_export: bool = False
    """KV of a slot can be exported as bytes and imported into another slot: any range of positions with `can_truncate`;
    otherwise, unless `exports_apart`, only the whole content of a slot, into an empty one."""
    exports_apart: bool = False
    """Without `can_truncate`: keys and values of whole blocks can be exported separately; the recurrent state only at
    the present length of a slot, together with the incomplete block before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPool:
    """A second pool of cells, where layers with sliding window attention keep the last positions of each slot."""

    capacity: int
    """Cells of the pool."""
    reach: int
    """Maximum number of positions before the end of a slot that take cells of the pool: the window, the longest draft
    that may be cut off, and the rest of a page."""
    bytes_per_cell: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Sizes and abilities of a loaded model. Sizes are in tokens unless the name says otherwise."""

    name: str
    architecture: str
    vocab_size: int
    eog_token_ids: frozenset[int]
    """All end-of-generation token ids: each of them ends an answer."""
    trained_context: int
    context_size: int
    """Maximum length of a sequence, prompt and completion together."""
    kv_tokens: int
    """Number of cells in the KV pool that all slots share."""
    most_kv_tokens: int = 0
    """Maximum number of cells while other models lend theirs; 0 = the pool neither lends nor borrows."""
    num_slots: int
    """Number of native sequences that can hold KV at the same time, running and retained."""
    max_batch_tokens: int
    """Maximum number of entries in one forward pass."""
    traits: CacheTraits
    tile_rows: int = 1
    """Forward passes cost least per entry if their number of entries is a multiple of this."""
    pass_per_prompt: bool = False
    """Each prompt chunk needs its own forward pass, so that few long chunks are cheaper than many short ones."""
    kv_format: str = ""
    """Identifies the format of exported KV: the backend and its version, the element types, and every option that
    changes the content. KV of another format is never imported."""
    kv_bytes_per_token: int = 0
    """Bytes per cell of the pool, without the layers of `windows`; 0 = not known."""
    windows: WindowPool | None = None
    """The pool of layers with sliding window attention; None = all layers keep all positions, in one pool."""
    state_bytes_per_slot: int = 0
    """Bytes per used slot besides its cells: the states of recurrent layers."""
    mixes_adapters: bool = False
    """Chunks of one step may be computed with different sets of adapters."""
    is_batch_invariant: bool = False
    """Logits of an entry are the same to the bit, whatever else the pass computes, also later entries of its chunk."""
    can_generate: bool = True
    """False: the model is an encoder, which computes embeddings but no logits."""

    @property
    def least_kv_tokens(self) -> int:
        """Minimum number of cells that the pool keeps: `kv_tokens` if it lends nothing, else a quarter of them, but
        enough for a short request.
        """
        if not self.most_kv_tokens:
            return self.kv_tokens
        return min(self.kv_tokens, max(_LEAST_CELLS, self.kv_tokens // _LEAST_PART))

    @property
    def max_sequence_tokens(self) -> int:
        """Maximum length of a sequence that can run: bounded by the context and by the size of the pool."""
        return min(self.context_size, self.kv_tokens)
