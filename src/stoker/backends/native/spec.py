"""The typed description of a decoder: all that an architecture decides, and nothing of how it is computed or stored."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray


class RopePairs(Enum):
    """Which two elements of a head are rotated together, of the first `dim`."""

    ADJACENT = "adjacent"
    """2i and 2i+1."""
    HALVES = "halves"
    """i and i + dim/2."""


class Activation(Enum):
    """What the gate goes through before it is multiplied with `up`."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    """GELU by the tanh formula."""
    SWIGLU_CLAMPED = "swiglu_clamped"
    """`g * sigmoid(1.702 g) * (u + 1)` with g = min(gate, 7) and u = up between -7 and 7: of gate and up together."""


class Routing(Enum):
    """What a router's outputs become."""

    SOFTMAX = "softmax"
    """Over all experts; then the best are chosen."""
    SIGMOID = "sigmoid"
    """Of each; then the best are chosen."""
    SOFTMAX_OF_CHOSEN = "softmax_of_chosen"
    """The best are chosen as they are; then softmax over these."""


class NormKind(Enum):
    """What the norms of the residual stream do."""

    RMS = "rms"
    """`x / sqrt(mean(x²) + eps) * weight`"""
    LAYER = "layer"
    """`(x - mean(x)) / sqrt(variance(x) + eps) * weight`"""


class HeadNorms(Enum):
    """When the norms of queries and keys are computed, and over what."""

    BEFORE_ROPE = "before_rope"
    """Over each head alone."""
    AFTER_ROPE = "after_rope"
    """Over each head alone, when it is rotated already."""
    WHOLE_ROW = "whole_row"
    """Over all heads of a row as one vector, before the rotation."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rope:
    """A rotary position embedding: the pair i of a head at position p turns by `p * frequencies[i]`.

    Scaling (linear, YaRN, Llama 3, LongRoPE) is already in the numbers.
    """

    pairs: RopePairs
    frequencies: NDArray[np.float64]
    """Radians per position, shape `(dim / 2,)`; elements behind the first `dim` of a head are not rotated."""
    magnitude: float = 1.0
    """Sine and cosine are multiplied with it."""

    @property
    def dim(self) -> int:
        return 2 * len(self.frequencies)

    def tables(self, num_positions: int) -> NDArray[np.float32]:
        """Cosines and sines of the positions 0 …, shape `(num_positions, 2, dim / 2)`, computed in float64."""
        found = np.empty((num_positions, 2, len(self.frequencies)), dtype=np.float32)
        for start in range(0, num_positions, _TABLE_ROWS):
            rows = slice(start, min(start + _TABLE_ROWS, num_positions))
            angles = np.arange(rows.start, rows.stop, dtype=np.float64)[:, None] * self.frequencies
            found[rows, 0] = np.cos(angles) * self.magnitude
            found[rows, 1] = np.sin(angles) * self.magnitude
        return found


_TABLE_ROWS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryScales:
    """Queries grow with the logarithm of their position: `1 + slope * ln(1 + floor(position / period))`."""

    slope: float
    period: int

    def table(self, num_positions: int) -> NDArray[np.float32]:
        """Of the positions 0 …"""
        steps = np.arange(num_positions) // self.period
        return (1 + self.slope * np.log1p(steps)).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """`weight @ x + bias`: some consecutive rows of a matrix in the file, so that fused matrices can be taken apart."""

    weight: str
    """Name of a tensor of shape (columns, at least `first_row + num_rows`), in the file's order."""
    num_rows: int
    num_columns: int
    first_row: int = 0
    bias: str | None = None
    """Name of a vector; its elements `first_row` … belong to these rows."""
    num_stacked: int = 1
    """Of how many equal matrices, one below the other, the tensor consists; then it has one more dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """The weights of a norm (see `NormKind`), times `scale`."""

    weight: str
    size: int
    scale: float = 1.0
    """Packed into the weights. Before the head it scales the logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The heads of a layer's attention."""

    num: int
    """Of queries."""
    num_kv: int
    """Of keys and values. Divides `num`: each is shared by as many query heads in a row."""
    size: int
    """Of queries, keys and values alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Equal feed-forward blocks, of which each row is computed with a few.

    Their results are added, each times its weight. The best experts are chosen by the router's outputs (see `Routing`)
    plus `selection_bias`; weights are without it. Each matrix holds those of all experts, one below the other.
    """

    count: int
    used: int
    """By a row."""
    size: int
    """Of the feed-forward of one."""
    router: Linear
    gate: Linear
    up: Linear
    down: Linear
    routing: Routing = Routing.SOFTMAX
    is_normalised: bool = False
    """Weights of a row are divided by their sum."""
    scale: float = 1.0
    """Weights are multiplied with it."""
    selection_bias: Norm | None = None
    num_groups: int = 1
    used_groups: int = 1
    """Experts of these groups alone are chosen; a group is as good as its best two experts are together."""
    shared_gate: Linear | None = None
    """One row: by the sigmoid of its product what the layer's own block gives is multiplied."""

    @property
    def linears(self) -> tuple[Linear, ...]:
        shared = () if self.shared_gate is None else (self.shared_gate,)
        return (self.router, self.gate, self.up, self.down, *shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One block.

    ```
    x += post_attention_norm(output(attention(rope(query_norm(query(n))), rope(key_norm(key(n))), value(n))))
                                                                                     where n = attention_norm(x)
    x += post_feed_forward_norm(down(activation(gate(m)) * up(m)))                   where m = feed_forward_norm(x)
    ```

    A norm that is missing changes nothing.
    """

    heads: Heads
    attention_norm: Norm | None
    query: Linear
    key: Linear
    value: Linear
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    head_norms: HeadNorms = HeadNorms.BEFORE_ROPE
    output: Linear
    post_attention_norm: Norm | None = None
    sinks: Norm | None = None
    """Of each query head the score of one more position, whose value is zero."""
    feed_forward_norm: Norm | None
    gate: Linear | None
    """With `up` and `down` the block of all rows; None beside experts that have no such block."""
    up: Linear | None
    down: Linear | None
    experts: Experts | None = None
    """What they give is added to what the block gives."""
    post_feed_forward_norm: Norm | None = None
    is_parallel: bool = False
    """In m, x is what it was before attention was added; there is no `post_attention_norm` then."""
    rope: int = 0
    """Index into `DecoderSpec.ropes`."""
    window: int | None = None
    """A position sees itself and the `window - 1` before it; None = all before it."""

    @property
    def feed_forward_size(self) -> int:
        return 0 if self.down is None else self.down.num_columns

    @property
    def places(self) -> tuple[Linear | None, ...]:
        """Those that adapters may change, in the order of the computation."""
        return (self.query, self.key, self.value, self.output, self.gate, self.up, self.down)

    @property
    def linears(self) -> tuple[Linear, ...]:
        experts = () if self.experts is None else self.experts.linears
        return (*(linear for linear in self.places if linear is not None), *experts)

    @property
    def norms(self) -> tuple[Norm, ...]:
        places = (
            self.attention_norm,
            self.query_norm,
            self.key_norm,
            self.sinks,
            None if self.experts is None else self.experts.selection_bias,
            self.post_attention_norm,
            self.feed_forward_norm,
            self.post_feed_forward_norm,
        )
        return tuple(norm for norm in places if norm is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A decoder-only transformer: embedding, layers, norm, output head."""

    architecture: str
    vocab_size: int
    hidden_size: int
    norm_eps: float
    norm: NormKind = NormKind.RMS
    activation: Activation
    attention_scale: float
    """Scores are `attention_scale * (query · key)`."""
    query_scales: QueryScales | None = None
    """By which queries are multiplied besides, by position."""
    attention_softcap: float = 0.0
    """Scores become `softcap * tanh(score / softcap)`; 0 = off."""
    embedding: Linear
    embedding_scale: float = 1.0
    ropes: tuple[Rope, ...]
    layers: tuple[Layer, ...]
    output_norm: Norm
    head: Linear
    """The same tensor as `embedding` if the file has no head of its own."""
    logit_softcap: float = 0.0
    """Logits become `softcap * tanh(logit / softcap)`; 0 = off."""
    trained_context: int
    """In tokens."""
    unused: frozenset[str] = field(default=frozenset())
    """Tensors of the file that need not be loaded, such as tables that are in `ropes` already."""

    @property
    def is_tied(self) -> bool:
        return self.head.weight == self.embedding.weight

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Every matrix once, in the order of the computation; a tied head is not there twice."""
        ends = (self.embedding,) if self.is_tied else (self.embedding, self.head)
        return (*(linear for layer in self.layers for linear in layer.linears), *ends)

    @property
    def norms(self) -> tuple[Norm, ...]:
        return (*(norm for layer in self.layers for norm in layer.norms), self.output_norm)

    @property
    def has_equal_layers(self) -> bool:
        """Whether all layers have the same heads and a feed-forward of the same size, and none has experts."""
        kinds = {(layer.heads, layer.feed_forward_size, layer.experts is None) for layer in self.layers}
        return len(kinds) == 1 and self.layers[0].experts is None

    @property
    def heads(self) -> Heads:
        """Of the first layer, and of all if they are equal."""
        return self.layers[0].heads

    @property
    def head_sizes(self) -> frozenset[int]:
        """Of any layer."""
        return frozenset(layer.heads.size for layer in self.layers)
