"""What layers of a decoder consist of: matrices, norms, and the parts that only some layers have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from stoker.backends.native.kinds import Mixer, Routing


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """`weight @ x * scale + bias`: some consecutive rows of a matrix in the file, which takes fused matrices apart."""

    weight: str
    """Name of a tensor of shape (columns, at least `first_row + num_rows`), in the file's order."""
    num_rows: int
    num_columns: int
    first_row: int = 0
    bias: str | None = None
    """Name of a vector; its elements `first_row` … belong to these rows."""
    scale: str | None = None
    """Name of a tensor of one number, by which the products are multiplied before the bias is added."""
    num_stacked: int = 1
    """Of how many equal matrices, one below the other, the tensor consists; then it has one more dimension."""
    run: int = 0
    """The rows are so many behind one another, then `gap` are left out, and so on; 0 = none is left out."""
    gap: int = 0
    """0 = as many as `run`."""
    turned_columns: int = 0
    """Not 0: of each run of rows in the file, which have this many columns, it is the transpose, as floats."""

    @property
    def columns_in_file(self) -> int:
        return self.turned_columns or self.num_columns

    @property
    def num_rows_in_file(self) -> int:
        return self.num_rows * self.num_columns // self.columns_in_file

    def rows_in_file(self) -> NDArray[np.int64]:
        """Which rows of the tensor these are, `(num_rows_in_file,)`."""
        rows = np.arange(self.num_rows_in_file)
        return self.first_row + rows + (rows // self.run * (self.gap or self.run) if self.run else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """The weights of a norm (see `NormKind`), times `scale`."""

    weight: str | None
    """None = all are 1, and no tensor of the file has them."""
    size: int
    scale: float = 1.0
    """Packed into the weights. Before the head it scales the logits."""
    num_stacked: int = 1
    """Of how many equal vectors, one behind the other, it consists; then the tensor has one more dimension."""
    taps: int = 0
    """Of a convolution: so many weights for each channel, which lie together in the file. Packed tap by tap."""
    bias: str | None = None
    """Name of another vector of this size, packed behind it."""
    behind: tuple[str, ...] = ()
    """Names of further tensors of the same shape, which are a part of the vector: of channels of a convolution."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the tensors that the vector consists of, without the bias."""
        return () if self.weight is None else (self.weight, *self.behind)

    @property
    def num_floats(self) -> int:
        """Floats of the vector and of its bias."""
        return self.size * (1 if self.bias is None else 2)


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
    up: Linear | None
    down: Linear
    routing: Routing = Routing.SOFTMAX
    is_normalised: bool = False
    """Weights of a row are divided by their sum."""
    scale: float = 1.0
    """Weights are multiplied with it."""
    weighs_input: bool = False
    """The input of an expert is multiplied by its weight, not what it gives."""
    is_ahead: bool = False
    """The router sees x as it is before attention, without a norm; then `norm` is there, and `router_norm` is not."""
    selection_bias: Norm | None = None
    num_groups: int = 1
    used_groups: int = 1
    """Experts of these groups alone are chosen; a group is as good as its best two experts are together."""
    shared_gate: Linear | None = None
    """One row: by the sigmoid of its product what the layer's own block gives is multiplied."""
    router_norm: Norm | None = None
    """With `norm`, where router and experts have other inputs than the layer's own block; else they share its input."""
    norm: Norm | None = None
    block_norm: Norm | None = None
    """Of what the layer's own block gives, before what experts give is added."""
    post_norm: Norm | None = None
    """Of what they give together."""
    output_scales: Norm | None = None
    """By which what each gives is multiplied."""

    @property
    def linears(self) -> tuple[Linear, ...]:
        places = (self.router, self.gate, self.up, self.down, self.shared_gate)
        return tuple(linear for linear in places if linear is not None)

    @property
    def norms(self) -> tuple[Norm, ...]:
        places = (
            self.selection_bias,
            self.router_norm,
            self.norm,
            self.block_norm,
            self.post_norm,
            self.output_scales,
        )
        return tuple(norm for norm in places if norm is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """What a layer has that keeps a state of a sequence instead of keys and values (see `Mixer`).

    ```
    step  = softplus(decay(n) + step_bias)
    decay = e^(decay_rate * step)
    ```
    """

    mixer: Mixer
    taps: int
    """Inputs of each channel that are convolved: the present one, and those before it, which the state keeps."""
    convolution: Norm
    convolution_bias: Norm | None = None
    num_heads: int = 0
    """Of a scan, each with a state of its own, or channels of Mamba 1; 0 = none, and nothing below is there."""
    num_key_heads: int = 0
    """Heads of queries and of keys. Divides `num_heads`."""
    key_size: int = 0
    """Of a query and of a key."""
    value_size: int = 0
    are_interleaved: bool = False
    """The heads h, h + num_key_heads, … share those of queries and keys; otherwise neighbors do."""
    decay: Linear | None = None
    beta: Linear | None = None
    low: Linear | None = None
    """Of Mamba 1: what the steps are made of, B and C, from what is convolved."""
    wide_decay: Linear | None = None
    """Of KDA, behind `decay`; of Mamba 1, behind the first rows of `low`, with the bias of the steps."""
    wide_gate: Linear | None = None
    """Of KDA, behind `mixed_gate`."""
    low_norm: Norm | None = None
    """With `key_norm` and `query_norm`: of what the steps are made of, of B, and of C, or of none of them."""
    key_norm: Norm | None = None
    query_norm: Norm | None = None
    step_bias: Norm | None = None
    decay_rate: Norm | None = None
    skip: Norm | None = None
    norm: Norm | None = None
    """Of what is given: of each head with the same weights, before the gate (delta net), or of groups behind it."""
    norm_size: int = 0
    """Of a head, or of a group."""
    norm_eps: float = 0.0
    """Of `norm`, and of the lengths of queries and keys."""

    @property
    def linears(self) -> tuple[Linear, ...]:
        places = (self.decay, self.beta, self.low, self.wide_decay, self.wide_gate)
        return tuple(linear for linear in places if linear is not None)

    @property
    def norms(self) -> tuple[Norm, ...]:
        steps = (self.step_bias, self.decay_rate, self.skip, self.norm, self.low_norm, self.key_norm, self.query_norm)
        places = (self.convolution, self.convolution_bias, *steps)
        return tuple(norm for norm in places if norm is not None)

    @property
    def state_floats(self) -> int:
        """What is kept of a sequence."""
        channels = self.convolution.size // self.taps
        return (self.taps - 1) * channels + self.num_heads * self.key_size * self.value_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Keys and values that all heads share, as one short vector of each position.

    ```
    `query` gives    | head 0: plain, rotated | head 1 | …      or numbers of which `narrow(query_norm(…))` makes these
    `key` gives      | latent | rotated |
    a key            | rope(rotated) | norm(latent) |           which is the value, too
    a query          | rope(rotated) | wide(plain) |            of each head
    the output       out(value without its first part)          of each head
    ```
    """

    size: int
    """Of the vector, without what is rotated."""
    plain: int
    rotated: int
    value: int
    """What a head gives in the end."""
    narrow: Linear | None
    wide: Linear
    out: Linear
    query_norm: Norm | None
    norm: Norm

    @property
    def linears(self) -> tuple[Linear, ...]:
        return (self.wide, self.out) if self.narrow is None else (self.narrow, self.wide, self.out)

    @property
    def norms(self) -> tuple[Norm, ...]:
        return (self.norm,) if self.query_norm is None else (self.query_norm, self.norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """What a layer adds last, from what each token has for it (see `LayerInputs`).

    ```
    x += norm(output(activation(gate(x)) * input))
    ```
    """

    gate: Linear
    output: Linear
    norm: Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamUse:
    """What a layer does with the streams of each token (AltUp, see `Streams`), and what stands beside its attention
    (LAuReL, arXiv:2411.07501).

    ```
    m(x)      = tanh(router(router_norm(x)))
    streams  += predict(m(stream 0)) of them                        x = stream 0 from here on
    x'        = (x + attention + norm(wide(narrow(n))) + n) / √2    n = attention_norm(x); then the feed-forward
    stream i += (1 + correct(m(x'))[i]) * (x' - x)
    ```

    What each token has for the layer is then added to all streams but the first, through a gate of `scale * stream 0`.
    """

    router_norm: Norm
    router: Norm
    """A row for each stream."""
    predict: Norm
    """A row for each pair of streams."""
    correct: Norm
    """A row for each stream."""
    scale: Norm
    narrow: Linear
    wide: Linear
    norm: Norm

    @property
    def linears(self) -> tuple[Linear, ...]:
        return (self.narrow, self.wide)

    @property
    def norms(self) -> tuple[Norm, ...]:
        return (self.router_norm, self.router, self.predict, self.correct, self.scale, self.norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """That a token has four streams in place of one x (AltUp, arXiv:2301.13310).

    ```
    stream 1, 2, 3 = split(x), each brought to the length of x      x is stream 0
    x              = (stream 0 + join of each of the others) / 4    in the end, likewise brought to its length
    ```
    """

    count: ClassVar[int] = 4

    split: Linear
    """With `join` three square matrices, one below the other."""
    join: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Xielu:
    """The activation of a layer: a parabola where x > 0, and an exponential below (arXiv:2411.13010).

    ```
    above * x² + slope * x                          x > 0
    below * (e^min(x, end) - 1 - x) + slope * x     elsewhere
    ```
    """

    below: float
    above: float
    slope: float
    end: float
