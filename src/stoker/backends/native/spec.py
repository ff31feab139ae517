"""The typed description of a decoder: all that a model's architecture defines, not how it is computed or stored."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stoker.backends.native.kinds import Activation, DenseActivation, HeadNorms, NormKind
from stoker.backends.native.layer_parts import (
    Experts,
    Injection,
    Latent,
    Linear,
    Norm,
    Parts,
    Recurrence,
    Streams,
    StreamUse,
    Xielu,
    parts_of,
)
from stoker.backends.native.rope import Rope
from stoker.core.embedding import Pooling


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The attention heads of a layer."""

    num: int
    """Number of query heads."""
    num_kv: int
    """Number of heads of keys and values (GQA). It divides `num`: `num / num_kv` consecutive query heads share one."""
    size: int
    """Elements of a head, the same for queries, keys and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryScales:
    """Attention temperature: a query has the factor `1 + slope * ln(1 + floor((position + offset) / period))`."""

    slope: float
    period: int
    offset: int = 0

    def table(self, num_positions: int) -> NDArray[np.float32]:
        """The factors of positions `0 … num_positions-1`."""
        steps = (np.arange(num_positions) + self.offset) // self.period
        return (1 + self.slope * np.log1p(steps)).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInputs(Parts):
    """Per-layer inputs: `norm(projection(x)) + table_scale * table[token]`, where x is the embedding of the token."""

    size: int
    """Elements of the input of one layer."""
    table: Linear
    projection: Linear
    norm: Norm
    """Norm over the input of each layer separately."""
    norm_eps: float
    table_scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One block of the decoder: attention or a recurrence, then a feed-forward.

    ```
    x += post_attention_norm(output(attention(rope(query_norm(query(n))), rope(key_norm(key(n))), value(n))))
                                                                                     where n = attention_norm(x)
    x += post_feed_forward_norm(down(activation(gate(m)) * up(m)))                   where m = feed_forward_norm(x)
    ```

    A missing norm is the identity. Without heads and without a recurrence, `query(n)` is added to x in place of
    attention, and there is no `output`; without a `query` either, nothing is added.
    """

    heads: Heads | None
    """Attention heads; None = the layer has no attention."""
    recurrence: Recurrence | None = None
    """A recurrent mixer in place of attention."""
    attention_norm: Norm | None
    query: Linear | None
    key: Linear | None
    """Key projection; `key` and `value` are missing where the layer attends to the keys and values of another layer."""
    value: Linear | None
    latent: Latent | None = None
    """Latent attention (MLA). With it there is no `value`; `heads` describes the query heads and the only key head."""
    kv_layer: int | None = None
    """Index of an earlier layer whose keys and values this layer attends to; its heads and window are equal."""
    lent_layer: int | None = None
    """In a draft head: index of the layer of the target model whose keys and values this layer attends to, of earlier
    positions only."""
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    norms_values: bool = False
    """Whether values, too, have a norm over each head; it has no weights."""
    head_norms: HeadNorms = HeadNorms.BEFORE_ROPE
    sinks: Norm | None = None
    """Attention sinks: for each query head the score of one additional position, whose value is zero."""
    mixed_norm: Norm | None = None
    """Norm over the concatenated heads of attention, before `output`."""
    output: Linear | None
    mixed_gate: Linear | None = None
    """Gate of the mixer: the result of attention is multiplied by its sigmoid, that of a recurrence by its SiLU (KDA:
    by the sigmoid of what `wide_gate` makes from it)."""
    post_attention_norm: Norm | None = None
    feed_forward_norm: Norm | None
    gate: Linear | None
    """`gate`, `up` and `down` are the dense feed-forward, which computes all rows; None = only experts, or none."""
    up: Linear | None
    down: Linear | None
    inner_norm: Norm | None = None
    """Norm over the input of `down`; experts have none."""
    xielu: Xielu | None = None
    """Parameters of the activation xIELU."""
    experts: Experts | None = None
    """Mixture of experts. Its result is added to that of the dense feed-forward, if the layer has both."""
    gate_cut: float | None = None
    """Activation sparsity: the threshold of a row of gates is their mean plus this many standard deviations. The
    activation sees how far each gate exceeds the threshold, 0 if it does not. None = it sees gates as they are."""
    post_feed_forward_norm: Norm | None = None
    injection: Injection | None = None
    streams: StreamUse | None = None
    """How the layer uses the parallel residual streams; set in each layer of a decoder with `Streams`."""
    output_scale: float = 1.0
    """Factor by which x is multiplied after the layer."""
    output_norm: Norm | None = None
    """Norm whose result replaces x after the layer. The last layer has none."""
    is_parallel: bool = False
    """Parallel attention and feed-forward: in m, x is the layer's input; there is no `post_attention_norm` then."""
    is_beside: bool = False
    """Whether n is computed from the input of the preceding layer, which has no feed-forward."""
    rope: int = 0
    """Index into `DecoderSpec.ropes`."""
    window: int | None = None
    """Sliding window: a position sees itself and the `window - 1` positions before it; None = all before it. Where
    positions see ahead (`sees_ahead`), it sees `window // 2` positions before and as many after it; None = all."""
    is_chunked: bool = False
    """Whether the window does not slide: a position then sees back to the last multiple of `window`."""
    scales_queries: bool = True
    """Whether `DecoderSpec.query_scales`, if there are any, apply in this layer."""

    @property
    def feed_forward_size(self) -> int:
        return 0 if self.down is None else self.down.num_columns

    @property
    def has_further_parts(self) -> bool:
        """Whether the layer has parts besides plain attention, a dense feed-forward and norms."""
        parts = (
            self.experts,
            self.recurrence,
            self.mixed_gate,
            self.injection,
            self.kv_layer,
            self.latent,
            self.gate_cut,
            self.output_norm,
            self.mixed_norm,
            self.inner_norm,
        )
        has_scale = any(linear.scale for linear in self.linears)
        return any(part is not None for part in parts) or self.norms_values or self.output_scale != 1 or has_scale

    @property
    def places(self) -> tuple[Linear | None, ...]:
        """The linear maps that LoRA adapters may change, in the order of the computation; None for a missing one."""
        return (self.query, self.key, self.value, self.output, self.gate, self.up, self.down)

    @property
    def linears(self) -> tuple[Linear, ...]:
        parts = (self.experts, self.recurrence, self.injection, self.latent, self.streams)
        more = (linear for part in parts if part is not None for linear in part.linears)
        return (*(linear for linear in (*self.places, self.mixed_gate) if linear is not None), *more)

    @property
    def norms(self) -> tuple[Norm, ...]:
        parts = (self.injection, self.recurrence, self.experts, self.latent, self.streams)
        return (*parts_of(self, Norm), *(norm for part in parts if part is not None for norm in part.norms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense(Parts):
    """A dense layer after pooling: `norm(activation(linear(x)))`. A missing norm is the identity."""

    linear: Linear
    activation: DenseActivation = DenseActivation.NONE
    norm: Norm | None = None
    """A layer norm, which subtracts the mean, whatever `DecoderSpec.norm` is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """Dense layers that are applied in order to a pooled hidden state: a projection, or a classifier."""

    dense: tuple[Dense, ...]
    is_classifier: bool = False
    """Whether the result is a score for each label; the first is the relevance of a text to a query."""
    pooling: Pooling | None = None
    """Which pooling a classifier's input comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Parts):
    """The input of a draft head (MTP, EAGLE), in place of an embedding.

    ```
    both = | embedding_norm(embedding of the entry) | hidden_norm(h) |     h: a hidden state of the entry before it
    x    = projection(both)
    ```

    Without a projection, x is h, and the first layer computes queries, keys and values from `both`. A missing norm is
    the identity.
    """

    hidden_size: int
    """Elements of h."""
    projection: Linear | None
    embedding_norm: Norm | None
    hidden_norm: Norm | None
    fuse: Linear | None = None
    """EAGLE-3: h is `fuse(fuse_norm(…))` of the inputs of some layers of the model, unless the head itself made h."""
    fuse_norm: Norm | None = None
    give: Linear | None = None
    """Computes the hidden state that the head returns from the input of `DecoderSpec.head`."""
    keeps_norm: bool = False
    """Whether, without a projection, x is `hidden_norm(h)` instead of h."""
    gives_sum: bool = False
    """Whether the hidden state that the head returns is x after its last layer, without a norm."""
    first_position: int = 0
    """First position that later positions attend to; an earlier position is seen only by itself."""

    @property
    def state_size(self) -> int:
        """Elements of the state that the model passes to the head for each entry."""
        return self.hidden_size if self.fuse is None else self.fuse.num_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A transformer: embedding, layers, norm, output head. Also describes encoders and draft heads.

    ```
    x = embedding_norm(embedding * embedding_scale + token_type + positions)        missing parts change nothing
    ```
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    norm_eps: float
    norm: NormKind = NormKind.RMS
    activation: Activation
    attention_scale: float
    """Scores are `attention_scale * (query · key)`."""
    query_scales: QueryScales | None = None
    """Factors of queries that depend on the position, besides `attention_scale`."""
    attention_softcap: float = 0.0
    """Attention scores become `softcap * tanh(score / softcap)`; 0 = off."""
    embedding: Linear
    embedding_scale: float = 1.0
    input_limit: float = 0.0
    """Queries, keys and values are clamped to ± this limit before they are rotated; 0 = off."""
    input_scale: float = 1.0
    """Factor of rows that replace embeddings, such as those of images."""
    deep_layers: int = 0
    """DeepStack: after each of this many first layers, a further part of such a row, as wide as an embedding, is added
    to x."""
    layer_inputs: LayerInputs | None = None
    streams: Streams | None = None
    join: Join | None = None
    token_type: Norm | None = None
    """Token type embeddings; the first is added to the embedding of every token."""
    positions: Norm | None = None
    """Learned position embeddings, a row for each position."""
    embedding_norm: Norm | None = None
    replaces_stream: bool = False
    """Whether the results of `attention_norm` and `feed_forward_norm` replace x in the residual stream."""
    sees_ahead: bool = False
    """Whether attention is bidirectional, as in an encoder: a position sees its whole sequence."""
    distance_slopes: tuple[float, ...] | None = None
    """ALiBi: for each query head, how much a score decreases with each position of distance."""
    ropes: tuple[Rope, ...]
    layers: tuple[Layer, ...]
    output_norm: Norm
    head: Linear
    """The output head (unembedding); equal to `embedding` if the file has no separate one."""
    logit_softcap: float = 0.0
    """Logits become `softcap * tanh(logit / softcap)`; 0 = off."""
    pooled: Pooled | None = None
    """Dense layers that follow pooling when a sequence is embedded."""
    trained_context: int
    """Context length that the model was trained with, in tokens."""
    draft_head: DecoderSpec | None = None
    """The draft head (MTP) in the same file, as a decoder with a `join`. It uses the embedding and output head of this
    decoder, unless the file has separate ones for it."""
    extracted_layers: tuple[int, ...] = ()
    """Layers whose inputs a draft head in another file reads."""
    lent: frozenset[str] = frozenset()
    """In a draft head with a file of its own: which of `embedding` and `head` the target model's file has instead."""
    unused: frozenset[str] = field(default=frozenset())
    """Tensors of the file that need not be loaded, such as tables that are already part of `ropes`."""

    @property
    def row_width(self) -> int:
        """Elements of a row that replaces an embedding, including its parts for `deep_layers`."""
        return (1 + self.deep_layers) * self.hidden_size

    @property
    def is_tied(self) -> bool:
        return self.head == self.embedding and len(self.lent) != 1

    @property
    def embedding_size(self) -> int:
        """Elements of the embedding of a sequence; 1 for a classifier."""
        if self.pooled is None:
            return self.hidden_size
        return 1 if self.pooled.is_classifier else self.pooled.dense[-1].linear.num_rows

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Every matrix once, in the order of the computation; a tied output head does not appear twice."""
        dense = () if self.pooled is None else self.pooled.dense
        parts = (self.layer_inputs, self.streams, self.join, self.draft_head, *dense)
        ends = (getattr(self, name) for name in ("embedding", "head") if name not in self.lent)
        more = (linear for part in parts if part is not None for linear in part.linears)
        return tuple(dict.fromkeys((*(linear for layer in self.layers for linear in layer.linears), *ends, *more)))

    @property
    def norms(self) -> tuple[Norm, ...]:
        dense = () if self.pooled is None else self.pooled.dense
        inputs = () if self.layer_inputs is None else self.layer_inputs.norms
        ends = (self.output_norm, *inputs, self.token_type, self.positions, self.embedding_norm)
        more = (norm for part in (*dense, self.join, self.draft_head) if part is not None for norm in part.norms)
        return (
            *(norm for layer in self.layers for norm in layer.norms),
            *(norm for norm in ends if norm is not None),
            *more,
        )

    @property
    def has_equal_layers(self) -> bool:
        """Whether all layers have the same heads and a feed-forward of the same size, and no further parts."""
        kinds = {(layer.heads, layer.feed_forward_size) for layer in self.layers}
        return len(kinds) == 1 and not any(layer.has_further_parts for layer in self.layers)

    @property
    def heads(self) -> Heads:
        """The heads of the first layer with attention; with `has_equal_layers`, of all layers."""
        return next(layer.heads for layer in self.layers if layer.heads is not None)

    @property
    def largest_head(self) -> int:
        """The size of the largest head of any layer; 0 = no layer has attention."""
        return max((layer.heads.size for layer in self.layers if layer.heads is not None), default=0)

    @property
    def kv_head_sizes(self) -> tuple[int, ...]:
        """The size of each head of keys and values, of all layers that have keys and values of their own."""
        own = (layer for layer in self.layers if layer.kv_layer is None and layer.lent_layer is None)
        all_heads = [layer.heads for layer in own if layer.heads is not None]
        return tuple(heads.size for heads in all_heads for _ in range(heads.num_kv))

    @property
    def borrows_keys(self) -> bool:
        """Whether this is a draft head that attends to keys and values of the target model and has none of its own."""
        return any(layer.lent_layer is not None for layer in self.layers)

    @property
    def state_bytes(self) -> int:
        """Bytes of all recurrent layers' states for one sequence, independent of its length; 0 = there are none."""
        return 4 * sum(layer.recurrence.state_floats for layer in self.layers if layer.recurrence is not None)
