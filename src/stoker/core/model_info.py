"""What a backend says about itself, once, when it has loaded: sizes, limits and what its cache can do."""

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
    """Without `can_truncate`: so many entries behind the first one of a slot's last chunk can be cut off again, as long
    as nothing was computed behind them, if the batch has said that they are drafted."""
    can_copy: bool
    """A prefix of one slot can be copied into another, empty slot."""
    copies_whole: bool = False
    """Only all that a slot holds can be copied, and no shorter prefix. Without `can_truncate`: a later prompt can go on
    only where some slot ends, and checkpoints are such slots (docs/adr/0034)."""
    shares_cells: bool
    """A copied prefix occupies no cells of its own until it diverges."""
    can_export: bool = False
    """KV can be taken out of a slot as bytes and put into another: any range of positions if the backend can
    truncate, else only all that the slot holds, into an empty one, unless `exports_apart`."""
    exports_apart: bool = False
    """Without `can_truncate`: keys and values of whole blocks can be exported by themselves, and at the present length
    of a slot what it holds besides, together with the part of a block before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPool:
    """A second pool of cells: layers that see only a window keep the last positions of each slot there."""

    capacity: int
    """Cells of the pool."""
    reach: int
    """Positions before the end of a slot that take cells of the pool, at most: the window, what drafts may be cut back
    by, and the rest of a page."""
    bytes_per_cell: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A loaded model's sizes. Everything is counted in tokens unless the name says otherwise."""

    name: str
    architecture: str
    vocab_size: int
    eog_token_ids: frozenset[int]
    """The whole end-of-generation set: any of these ends an answer."""
    trained_context: int
    context_size: int
    """Longest single sequence, prompt and completion together."""
    kv_tokens: int
    """Cells in the pool that all slots share."""
    most_kv_tokens: int = 0
    """Cells of the pool at most, while other models lend it theirs; 0 = none does, and its size is `kv_tokens`."""
    num_slots: int
    """Native sequences that can hold KV at the same time, running and retained."""
    max_batch_tokens: int
    """Most entries one forward pass takes."""
    traits: CacheTraits
    tile_rows: int = 1
    """A forward pass of a multiple of so many entries is cheapest for each of them."""
    pass_per_prompt: bool = False
    """Each chunk of a prompt takes a forward pass of its own, so that few long ones are cheaper than many short."""
    kv_format: str = ""
    """What exported KV means besides the weights: the backend with its version, the types of its elements, every
    option that changes them. KV of another format is never imported."""
    kv_bytes_per_token: int = 0
    """What one cell of the pool takes, without the layers of `windows`; 0 = not known."""
    windows: WindowPool | None = None
    """Where layers with a window keep less than all positions; None = every layer keeps all, in one pool."""
    state_bytes_per_slot: int = 0
    """What a slot with anything in it takes beside its cells: the states of recurrent layers."""
    mixes_adapters: bool = False
    """Chunks of one step may be computed with different sets of adapters."""
    is_batch_invariant: bool = False
    """Logits of an entry are the same to the bit whatever is computed in the same pass, behind it in its chunk too."""
    can_generate: bool = True
    """False: an encoder. It embeds, and has no logits."""

    @property
    def least_kv_tokens(self) -> int:
        """Cells that the pool keeps however much it lends: `kv_tokens` if it lends nothing, else a quarter of them, and
        enough for a short request.
        """
        if not self.most_kv_tokens:
            return self.kv_tokens
        return min(self.kv_tokens, max(_LEAST_CELLS, self.kv_tokens // _LEAST_PART))

    @property
    def max_sequence_tokens(self) -> int:
        """Longest sequence that can really run: bounded by the context and by the whole pool."""
        return min(self.context_size, self.kv_tokens)
