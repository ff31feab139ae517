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
class Linear:
    """`weight @ x + bias`: some consecutive rows of a matrix in the file, so that fused matrices can be taken apart."""

    weight: str
    """Name of a tensor of shape (columns, at least `first_row + num_rows`), in the file's order."""
    num_rows: int
    num_columns: int
    first_row: int = 0
    bias: str | None = None
    """Name of a vector; its elements `first_row` … belong to these rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """RMS norm: `x / sqrt(mean(x²) + eps) * scale * weight`."""

    weight: str
    size: int
    scale: float = 1.0
    """Packed into the weights. Before the head it scales the logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One block.

    ```
    x += post_attention_norm(output(attention(rope(query_norm(query(n))), rope(key_norm(key(n))), value(n))))
                                                                                     where n = attention_norm(x)
    x += post_feed_forward_norm(down(activation(gate(m)) * up(m)))                   where m = feed_forward_norm(x)
    ```
    """

    attention_norm: Norm
    query: Linear
    key: Linear
    value: Linear
    query_norm: Norm | None = None
    """Over each head alone, before the rotation."""
    key_norm: Norm | None = None
    output: Linear
    post_attention_norm: Norm | None = None
    feed_forward_norm: Norm
    gate: Linear
    up: Linear
    down: Linear
    post_feed_forward_norm: Norm | None = None
    rope: int = 0
    """Index into `DecoderSpec.ropes`."""
    window: int | None = None
    """A position sees itself and the `window - 1` before it; None = all before it."""

    @property
    def linears(self) -> tuple[Linear, ...]:
        return (self.query, self.key, self.value, self.output, self.gate, self.up, self.down)

    @property
    def norms(self) -> tuple[Norm, ...]:
        places = (
            self.attention_norm,
            self.query_norm,
            self.key_norm,
            self.post_attention_norm,
            self.feed_forward_norm,
            self.post_feed_forward_norm,
        )
        return tuple(norm for norm in places if norm is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A decoder-only transformer: embedding, equal layers, norm, output head."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    """Divides `num_heads`: each is shared by as many query heads in a row."""
    head_size: int
    """Of queries, keys and values alike."""
    feed_forward_size: int
    norm_eps: float
    activation: Activation
    attention_scale: float
    """Scores are `attention_scale * (query · key)`."""
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
    def kv_values_per_token(self) -> int:
        """Numbers that a token leaves in the cache: keys and values of all layers."""
        return 2 * len(self.layers) * self.num_kv_heads * self.head_size
