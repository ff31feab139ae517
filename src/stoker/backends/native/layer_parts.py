"""Descriptions of the parts of a decoder's layers: matrices, norms, experts, recurrences, latent attention, streams."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from stoker.backends.native.kinds import Mixer, Routing

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A linear map `weight @ x * scale + bias`. Its matrix is some rows of a tensor, as tensors may fuse matrices."""

    weight: str
    """Name of a tensor of shape (columns, at least `first_row + num_rows`), in the file's order."""
    num_rows: int
    num_columns: int
    first_row: int = 0
    bias: str | None = None
    """Name of a vector; its elements from `first_row` on belong to these rows."""
    scale: str | None = None
    """Name of a tensor of one number, by which the products are multiplied before the bias is added."""
    num_stacked: int = 1
    """Number of equal matrices, one below the other, in the tensor; if above 1, the tensor has one more dimension."""
    run: int = 0
    """The matrix takes `run` consecutive rows of the tensor, skips `gap` rows, and so on; 0 = it skips none."""
    gap: int = 0
    """Number of rows that are skipped after each run; 0 = as many as `run`."""
    turned_columns: int = 0
    """If not 0: the tensor has this many columns; the matrix is the transpose of each run of its rows, as floats."""

    @property
    def columns_in_file(self) -> int:
        return self.turned_columns or self.num_columns

    @property
    def num_rows_in_file(self) -> int:
        return self.num_rows * self.num_columns // self.columns_in_file

    def rows_in_file(self) -> NDArray[np.int64]:
        """Indices of the tensor's rows that the matrix takes, `(num_rows_in_file,)`."""
        rows = np.arange(self.num_rows_in_file)
        return self.first_row + rows + (rows // self.run * (self.gap or self.run) if self.run else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """The weights of a norm (see `NormKind`) times `scale`, or another vector or table of vectors."""

    weight: str | None
    """Name of the tensor; None = all weights are 1, and the file has no tensor."""
    size: int
    scale: float = 1.0
    """Factor of the weights, applied when they are packed. In the last norm it scales the logits."""
    num_stacked: int = 1
    """Number of equal vectors, one after the other, in the tensor; if above 1, the tensor has one more dimension."""
    taps: int = 0
    """Of a convolution: number of weights of each channel, which are consecutive in the file. Packed tap by tap."""
    bias: str | None = None
    """Name of another vector of this size, packed after the weights."""
    behind: tuple[str, ...] = ()
    """Names of further tensors of the same shape, which follow `weight` in the vector: channels of a convolution."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the tensors that the vector consists of, without the bias."""
        return () if self.weight is None else (self.weight, *self.behind)

    @property
    def num_floats(self) -> int:
        """Floats of the vector and of its bias."""
        return self.size * (1 if self.bias is None else 2)


def parts_of(description: DataclassInstance, kind: type[P]) -> tuple[P, ...]:
    """The fields of this kind, in their order."""
    values = (getattr(description, field.name) for field in fields(description))
    return tuple(value for value in values if isinstance(value, kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A description whose matrices and vectors have their place in packed memory in the order of its fields."""

    @property
    def linears(self) -> tuple[Linear, ...]:
        return parts_of(self, Linear)

    @property
    def norms(self) -> tuple[Norm, ...]:
        return parts_of(self, Norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(Parts):
    """Mixture of experts: equal feed-forwards, of which a few compute each row.

    Their results are multiplied by weights and added. The experts with the largest router outputs (see `Routing`) plus
    `selection_bias` are used; weights do not include the bias. Each matrix stacks the matrices of all experts.
    """

    count: int
    used: int
    """Number of experts that compute a row."""
    size: int
    """Inner size of the feed-forward of one expert."""
    router: Linear
    gate: Linear
    up: Linear | None
    down: Linear
    routing: Routing = Routing.SOFTMAX
    is_normalised: bool = False
    """Whether the weights of a row are divided by their sum."""
    scale: float = 1.0
    """Factor of all weights."""
    weighs_input: bool = False
    """Whether the weight multiplies the input of an expert instead of its result."""
    is_ahead: bool = False
    """Whether the router's input is x before attention, without a norm; then `norm` is set, `router_norm` is not."""
    selection_bias: Norm | None = None
    num_groups: int = 1
    used_groups: int = 1
    """Number of groups from which experts are chosen: those whose best two experts have the largest sum, with bias."""
    shared_gate: Linear | None = None
    """A matrix of one row: the sigmoid of its product multiplies the result of the dense (shared) feed-forward."""
    router_norm: Norm | None = None
    """Set, with `norm`, where router and experts have other inputs than the dense feed-forward; else they share one."""
    norm: Norm | None = None
    block_norm: Norm | None = None
    """Norm over the result of the dense feed-forward, before the result of the experts is added."""
    post_norm: Norm | None = None
    """Norm over the sum of the experts' results."""
    output_scales: Norm | None = None
    """A factor of the result of each expert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence(Parts):
    """A recurrent mixer, which keeps a state of each sequence instead of keys and values (see `Mixer`).

    ```
    step  = softplus(decay(n) + step_bias)
    decay = e^(decay_rate * step)
    ```
    """

    mixer: Mixer
    taps: int
    """Inputs of each channel in the convolution: the present one and earlier ones, which the state keeps."""
    convolution: Norm
    convolution_bias: Norm | None = None
    num_heads: int = 0
    """Heads of the scan, each with its own state, or channels of Mamba 1; 0 = no scan, and no later field is set."""
    num_key_heads: int = 0
    """Number of heads of queries and of keys. It divides `num_heads`."""
    key_size: int = 0
    """Elements of a query and of a key."""
    value_size: int = 0
    are_interleaved: bool = False
    """Whether heads h, h + num_key_heads, … share a head of queries and keys; otherwise consecutive heads share one."""
    decay: Linear | None = None
    beta: Linear | None = None
    low: Linear | None = None
    """Mamba 1: computes the low-rank steps, B and C from the result of the convolution."""
    wide_decay: Linear | None = None
    """KDA: applied after `decay`. Mamba 1: applied to the result of the first rows of `low`; its bias is the steps'."""
    wide_gate: Linear | None = None
    """KDA: applied after `mixed_gate`."""
    step_bias: Norm | None = None
    decay_rate: Norm | None = None
    skip: Norm | None = None
    norm: Norm | None = None
    """Norm of the result: over each head, with equal weights, before the gate (delta net), or over groups after it."""
    low_norm: Norm | None = None
    """Mamba 1: norm over the low-rank steps. Set together with `key_norm` (over B) and `query_norm` (over C)."""
    key_norm: Norm | None = None
    query_norm: Norm | None = None
    norm_size: int = 0
    """Elements of a head or group over which `norm` normalizes."""
    norm_eps: float = 0.0
    """Epsilon of `norm`, and of the normalization of queries and keys to unit length."""

    @property
    def state_floats(self) -> int:
        """Float32 numbers in the state of one sequence."""
        channels = self.convolution.size // self.taps
        return (self.taps - 1) * channels + self.num_heads * self.key_size * self.value_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent(Parts):
    """Multi-head latent attention (MLA): all heads share the keys and values, one short vector for each position.

    ```
    `query` gives    | head 0: plain, rotated | head 1 | …      or what `narrow(query_norm(…))` makes these from
    `key` gives      | latent | rotated |
    a key            | rope(rotated) | norm(latent) |           this is the value, too
    a query          | rope(rotated) | wide(plain) |            of each head
    the output       out(value without its first part)          of each head
    ```
    """

    size: int
    """Elements of the latent vector, without the rotated part."""
    plain: int
    rotated: int
    value: int
    """Elements of the final result of a head."""
    narrow: Linear | None
    wide: Linear
    out: Linear
    query_norm: Norm | None
    norm: Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection(Parts):
    """The last addition of a layer, from the token's input for this layer (see `LayerInputs`).

    ```
    x += norm(output(activation(gate(x)) * input))
    ```
    """

    gate: Linear
    output: Linear
    norm: Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamUse(Parts):
    """How a layer updates the residual streams of each token (AltUp, see `Streams`), and the low-rank branch parallel
    to its attention (LAuReL, arXiv:2411.07501).

    ```
    m(x)      = tanh(router(router_norm(x)))
    streams  += predict(m(stream 0)) of the streams                 x = stream 0 from here on
    x'        = (x + attention + norm(wide(narrow(n))) + n) / √2    n = attention_norm(x); then the feed-forward
    stream i += (1 + correct(m(x'))[i]) * (x' - x)
    ```

    The token's input for the layer is then added to all streams but the first, through a gate of `scale * stream 0`.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams(Parts):
    """Four residual streams for each token in place of one x (AltUp, arXiv:2301.13310).

    ```
    stream 1, 2, 3 = split(x), each scaled to the length of x       x is stream 0
    x              = (stream 0 + join of each other stream) / 4     after the last layer, scaled likewise
    ```
    """

    count: ClassVar[int] = 4

    split: Linear
    """Three square matrices, one below the other; `join` has three, too."""
    join: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Xielu:
    """Parameters of the activation xIELU: a parabola where x > 0, an exponential elsewhere (arXiv:2411.13010).

    ```
    above * x² + slope * x                          x > 0
    below * (e^min(x, end) - 1 - x) + slope * x     elsewhere
    ```
    """

    below: float
    above: float
    slope: float
    end: float
