"""The typed description of a decoder: all that an architecture decides, and nothing of how it is computed or stored."""

from __future__ import annotations

from dataclasses import dataclass, field

from stoker.backends.native.kinds import Activation, DenseActivation, HeadNorms, NormKind
from stoker.backends.native.layer_parts import (
    Experts,
    Injection,
    Latent,
    Linear,
    Norm,
    Recurrence,
    Streams,
    StreamUse,
    Xielu,
)
from stoker.backends.native.query_scales import QueryScales
from stoker.backends.native.rotation import Rope
from stoker.core.embedding import Pooling


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
class LayerInputs:
    """What each token has for each layer: `norm(projection(x)) + table_scale * table[token]`, x being its embedding."""

    size: int
    """Of one layer's."""
    table: Linear
    projection: Linear
    norm: Norm
    """Of each layer's by itself."""
    norm_eps: float
    table_scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One block.

    ```
    x += post_attention_norm(output(attention(rope(query_norm(query(n))), rope(key_norm(key(n))), value(n))))
                                                                                     where n = attention_norm(x)
    x += post_feed_forward_norm(down(activation(gate(m)) * up(m)))                   where m = feed_forward_norm(x)
    ```

    A norm that is missing changes nothing. Without heads and without a recurrence, what is added in place of attention
    is `query(n)`, and there is no output; or nothing is, if there is no query either.
    """

    heads: Heads | None
    """None in layers without attention."""
    recurrence: Recurrence | None = None
    """What is there in its place."""
    attention_norm: Norm | None
    query: Linear | None
    key: Linear | None
    """With `value` missing where the layer sees the keys and values of another one."""
    value: Linear | None
    latent: Latent | None = None
    """With it there is no `value`, and `heads` are those of queries and of the only key."""
    kv_layer: int | None = None
    """Whose these are: of one before it, with equal heads and window."""
    lent_layer: int | None = None
    """Of a draft head: whose these are, of the model that it drafts for; it sees those of earlier positions only."""
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    norms_values: bool = False
    """Values have a norm over each head, too, without weights."""
    head_norms: HeadNorms = HeadNorms.BEFORE_ROPE
    mixed_norm: Norm | None = None
    """Of all that attention gives, before `output`."""
    output: Linear | None
    mixed_gate: Linear | None = None
    """By its sigmoid what attention gives is multiplied, or by its SiLU what a recurrence gives."""
    post_attention_norm: Norm | None = None
    sinks: Norm | None = None
    """Of each query head the score of one more position, whose value is zero."""
    feed_forward_norm: Norm | None
    gate: Linear | None
    """With `up` and `down` the block of all rows; None beside experts, or without any feed-forward."""
    up: Linear | None
    down: Linear | None
    inner_norm: Norm | None = None
    """Of what `down` takes; not of experts."""
    xielu: Xielu | None = None
    """Of that activation."""
    experts: Experts | None = None
    """What they give is added to what the block gives."""
    gate_cut: float | None = None
    """Gates of a row that are not this many standard deviations above their mean count as if they were no more than
    that: what lies above is what the activation sees. None = all are seen as they are.
    """
    post_feed_forward_norm: Norm | None = None
    injection: Injection | None = None
    streams: StreamUse | None = None
    """Of each layer of a decoder with `Streams`."""
    output_scale: float = 1.0
    """By which x is multiplied behind the layer."""
    output_norm: Norm | None = None
    """What it makes of x behind the layer takes the place of x. Not of the last layer."""
    is_parallel: bool = False
    """In m, x is what it was before attention was added; there is no `post_attention_norm` then."""
    is_beside: bool = False
    """In n, x is what it was before the layer before this one, which has no feed-forward."""
    rope: int = 0
    """Index into `DecoderSpec.ropes`."""
    window: int | None = None
    """A position sees itself and the `window - 1` before it; None = all before it. Where positions see ahead, it sees
    `window // 2` before it and as many behind it; None = all."""
    is_chunked: bool = False
    """The window does not slide: a position sees those before it as far as the last multiple of `window`."""
    scales_queries: bool = True
    """By `DecoderSpec.query_scales`, if there are any."""

    @property
    def feed_forward_size(self) -> int:
        return 0 if self.down is None else self.down.num_columns

    @property
    def has_further_parts(self) -> bool:
        """Whether there is more than attention, feed-forward and norms."""
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
        """Linear maps that adapters may change, in the order of the computation. None = the layer lacks one."""
        return (self.query, self.key, self.value, self.output, self.gate, self.up, self.down)

    @property
    def linears(self) -> tuple[Linear, ...]:
        more = () if self.experts is None else self.experts.linears
        more += () if self.recurrence is None else self.recurrence.linears
        more += () if self.injection is None else (self.injection.gate, self.injection.output)
        more += () if self.latent is None else self.latent.linears
        more += () if self.streams is None else self.streams.linears
        return tuple(linear for linear in (*self.places, self.mixed_gate, *more) if linear is not None)

    @property
    def norms(self) -> tuple[Norm, ...]:
        places = (
            self.attention_norm,
            self.query_norm,
            self.key_norm,
            self.sinks,
            self.mixed_norm,
            self.post_attention_norm,
            self.feed_forward_norm,
            self.inner_norm,
            self.post_feed_forward_norm,
            self.output_norm,
            None if self.injection is None else self.injection.norm,
        )
        more = () if self.recurrence is None else self.recurrence.norms
        more += () if self.experts is None else self.experts.norms
        more += () if self.latent is None else self.latent.norms
        more += () if self.streams is None else self.streams.norms
        return (*(norm for norm in places if norm is not None), *more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """`norm(activation(linear(x)))`; a norm that is missing changes nothing."""

    linear: Linear
    activation: DenseActivation = DenseActivation.NONE
    norm: Norm | None = None
    """Always with the mean taken away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """Small matrices behind pooling, one after the other: of a projection, or of a classifier."""

    dense: tuple[Dense, ...]
    is_classifier: bool = False
    """They give a score for each of some labels, the first of which is the relevance of a text to a query."""
    pooling: Pooling | None = None
    """Of a classifier: what it looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """What a draft head begins with in place of an embedding.

    ```
    both = | embedding_norm(embedding of the entry) | hidden_norm(h) |     h: a hidden state of the entry before it
    x    = projection(both)
    ```

    Without a projection, x is h, and what the first layer's queries, keys and values are made from is `both`. A norm
    that is missing changes nothing.
    """

    hidden_size: int
    """Of h."""
    projection: Linear | None
    embedding_norm: Norm | None
    hidden_norm: Norm | None
    fuse: Linear | None = None
    """h is `fuse(fuse_norm(…))` of what comes into some layers of the model, unless the head itself gave it."""
    fuse_norm: Norm | None = None
    give: Linear | None = None
    """Hidden states that the head gives are made by it from what `DecoderSpec.head` is multiplied with."""
    keeps_norm: bool = False
    """Without a projection, x is `hidden_norm(h)`."""
    gives_sum: bool = False
    """Hidden states that the head gives are what its last layer leaves in x, without a norm."""
    first_position: int = 0
    """Positions before this one are not seen, but by themselves."""

    @property
    def state_size(self) -> int:
        """Numbers of what the model gives of each entry."""
        return self.hidden_size if self.fuse is None else self.fuse.num_columns

    @property
    def linears(self) -> tuple[Linear, ...]:
        return tuple(linear for linear in (self.projection, self.fuse, self.give) if linear is not None)

    @property
    def norms(self) -> tuple[Norm, ...]:
        places = (self.embedding_norm, self.hidden_norm, self.fuse_norm)
        return tuple(norm for norm in places if norm is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A transformer: embedding, layers, norm, output head.

    ```
    x = embedding_norm(embedding * embedding_scale + token_type + positions)
    ```

    What is missing there changes nothing.
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
    """By which queries are multiplied besides, by position."""
    attention_softcap: float = 0.0
    """Scores become `softcap * tanh(score / softcap)`; 0 = off."""
    embedding: Linear
    embedding_scale: float = 1.0
    input_limit: float = 0.0
    """Queries, keys and values stay within plus and minus this before they are rotated; 0 = off."""
    input_scale: float = 1.0
    """By which rows that stand in place of embeddings, such as those of images, are multiplied."""
    deep_layers: int = 0
    """Number of first layers behind each of which a part of such a row, as wide as an embedding, is added to x."""
    layer_inputs: LayerInputs | None = None
    streams: Streams | None = None
    join: Join | None = None
    token_type: Norm | None = None
    """Rows of vectors; the first is added to every embedding."""
    positions: Norm | None = None
    """A row for each position."""
    embedding_norm: Norm | None = None
    replaces_stream: bool = False
    """What `attention_norm` and `feed_forward_norm` give takes the place of x."""
    sees_ahead: bool = False
    """A position sees all of its sequence: an encoder."""
    distance_slopes: tuple[float, ...] | None = None
    """Of each query head: what its scores lose with each position that lies between (ALiBi)."""
    ropes: tuple[Rope, ...]
    layers: tuple[Layer, ...]
    output_norm: Norm
    head: Linear
    """The same tensor as `embedding` if the file has no head of its own."""
    logit_softcap: float = 0.0
    """Logits become `softcap * tanh(logit / softcap)`; 0 = off."""
    pooled: Pooled | None = None
    """What becomes of the hidden states of a sequence that is embedded, beyond pooling."""
    trained_context: int
    """In tokens."""
    draft_head: DecoderSpec | None = None
    """A layer of the file that guesses further tokens, as a decoder with a `join`. Embedding and output head are those
    of this decoder, unless the file has others for it."""
    extracted_layers: tuple[int, ...] = ()
    """Layers of which a draft head in another file reads what comes into them."""
    lent: frozenset[str] = frozenset()
    """Of a draft head in a file of its own: which of `embedding` and `head` lie in that of the model."""
    unused: frozenset[str] = field(default=frozenset())
    """Tensors of the file that need not be loaded, such as tables that are in `ropes` already."""

    @property
    def row_width(self) -> int:
        """Numbers of a row that stands in place of an embedding, with its parts for `deep_layers`."""
        return (1 + self.deep_layers) * self.hidden_size

    @property
    def is_tied(self) -> bool:
        return self.head == self.embedding and len(self.lent) != 1

    @property
    def embedding_size(self) -> int:
        """Numbers of the embedding of a sequence; 1 of a classifier."""
        if self.pooled is None:
            return self.hidden_size
        return 1 if self.pooled.is_classifier else self.pooled.dense[-1].linear.num_rows

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Every matrix once, in the order of the computation; a tied head is not there twice."""
        ends = tuple(getattr(self, name) for name in ("embedding", "head") if name not in self.lent)
        ends += () if self.layer_inputs is None else (self.layer_inputs.table, self.layer_inputs.projection)
        ends += () if self.streams is None else (self.streams.split, self.streams.join)
        ends += () if self.join is None else self.join.linears
        ends += () if self.draft_head is None else self.draft_head.linears
        ends += () if self.pooled is None else tuple(dense.linear for dense in self.pooled.dense)
        all_of_them = (*(linear for layer in self.layers for linear in layer.linears), *ends)
        return tuple(dict.fromkeys(all_of_them))

    @property
    def norms(self) -> tuple[Norm, ...]:
        inputs = () if self.layer_inputs is None else (self.layer_inputs.norm,)
        dense = () if self.pooled is None else (dense.norm for dense in self.pooled.dense)
        join = () if self.join is None else self.join.norms
        head = () if self.draft_head is None else self.draft_head.norms
        places = (self.output_norm, *inputs, self.token_type, self.positions, self.embedding_norm, *dense, *join, *head)
        ends = (norm for norm in places if norm is not None)
        return (*(norm for layer in self.layers for norm in layer.norms), *ends)

    @property
    def has_equal_layers(self) -> bool:
        """Whether all layers have the same heads and a feed-forward of the same size, and no further parts."""
        kinds = {(layer.heads, layer.feed_forward_size) for layer in self.layers}
        return len(kinds) == 1 and not any(layer.has_further_parts for layer in self.layers)

    @property
    def heads(self) -> Heads:
        """Of the first layer with attention, and of all if they are equal."""
        return next(layer.heads for layer in self.layers if layer.heads is not None)

    @property
    def largest_head(self) -> int:
        """The size of the largest head of any layer; 0 = no layer has attention."""
        return max((layer.heads.size for layer in self.layers if layer.heads is not None), default=0)

    @property
    def kv_head_sizes(self) -> tuple[int, ...]:
        """Of each head of keys and values of any layer its size."""
        own = (layer for layer in self.layers if layer.kv_layer is None and layer.lent_layer is None)
        all_heads = [layer.heads for layer in own if layer.heads is not None]
        return tuple(heads.size for heads in all_heads for _ in range(heads.num_kv))

    @property
    def borrows_keys(self) -> bool:
        """Whether it is a draft head that sees keys and values of the model, and has none."""
        return any(layer.lent_layer is not None for layer in self.layers)

    @property
    def state_bytes(self) -> int:
        """What recurrent layers keep of a sequence, however long it is; 0 = there are none."""
        return 4 * sum(layer.recurrence.state_floats for layer in self.layers if layer.recurrence is not None)
