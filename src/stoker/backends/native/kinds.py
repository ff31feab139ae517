"""Enumerations in the description of a decoder: the variants of activation, norm, routing, RoPE and mixer."""

from __future__ import annotations

from enum import Enum


class RopePairs(Enum):
    """Which two of the first `dim` elements of a head RoPE rotates as a pair."""

    ADJACENT = "adjacent"
    """Elements 2i and 2i+1."""
    HALVES = "halves"
    """Elements i and i + dim/2."""


class Activation(Enum):
    """The activation of a feed-forward: it is applied to `gate`; the result is multiplied by `up`."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    """GELU in its tanh approximation."""
    SWIGLU_CLAMPED = "swiglu_clamped"
    """`g * sigmoid(1.702 g) * (u + 1)` with g = min(gate, 7) and u = `up` clamped to -7 … 7; includes the product."""
    RELU_SQUARED = "relu_squared"
    """`max(gate, 0)²`; there is no `up`."""
    GELU = "gelu"
    """Exact GELU, with the error function."""
    GELU_ALONE = "gelu_alone"
    """Exact GELU, with the error function; there is no `up`."""
    GELU_TANH_ALONE = "gelu_tanh_alone"
    """GELU in its tanh approximation; there is no `up`."""
    RELU = "relu"
    """`max(gate, 0)`."""
    XIELU = "xielu"
    """See `Xielu`; there is no `up`."""


class Routing(Enum):
    """How a router's outputs become weights of experts, and when the best experts are chosen."""

    SOFTMAX = "softmax"
    """Softmax over all experts; then the best are chosen."""
    SIGMOID = "sigmoid"
    """Sigmoid of each output; then the best experts are chosen."""
    SOFTMAX_OF_CHOSEN = "softmax_of_chosen"
    """The best experts are chosen by raw outputs; then softmax over the chosen ones."""
    SIGMOID_OF_CHOSEN = "sigmoid_of_chosen"
    """The best experts are chosen by raw outputs; then the sigmoid of each chosen one."""


class NormKind(Enum):
    """The formula of the norms of the residual stream."""

    RMS = "rms"
    """`x / sqrt(mean(x²) + eps) * weight`"""
    LAYER = "layer"
    """`(x - mean(x)) / sqrt(variance(x) + eps) * weight`"""
    LAYER_BIASED = "layer_biased"
    """Layer norm plus a bias, which every such norm has."""
    RMS_BIASED = "rms_biased"
    """RMS norm plus a bias, which every such norm has."""


class Mixer(Enum):
    """How a layer without attention mixes the positions of a sequence."""

    SHORT_CONV = "short_conv"
    """`output(c * convolution(b * x))`, where `query` gives b, `key` gives c and `value` gives x."""
    DELTA_NET = "delta_net"
    """Gated delta net: `S = decay S + k (beta (v - (decay S)ᵀ k))ᵀ`; the result of a position is `Sᵀ q / sqrt(size q)`.
    Convolution and SiLU are applied to q, k and v; q and k are normalized to unit length."""
    MAMBA2 = "mamba2"
    """Mamba 2: `S = decay S + k (step v)ᵀ`; the result of a position is `Sᵀ q + skip v`. Convolution and SiLU are
    applied to q, k and v, which papers call C, B and x."""
    KDA = "kda"
    """Kimi Delta Attention (arXiv:2510.26692): a delta net with a separate decay for each element of a key, and a
    sigmoid gate. The decays and the gate are each computed by two matrices."""
    MAMBA = "mamba"
    """Mamba 1: `S[n] = e^(step decay_rate[n]) S[n] + B[n] step x` in each channel, whose result is `C S + skip x`. x is
    the result of `value` after convolution and SiLU; `low` computes B, C and the low-rank steps from x."""


class HeadNorms(Enum):
    """When the norms of queries and keys (QK norm) are computed, and over which elements."""

    BEFORE_ROPE = "before_rope"
    """Over each head separately, before the rotation."""
    AFTER_ROPE = "after_rope"
    """Over each head separately, after the rotation."""
    WHOLE_ROW = "whole_row"
    """Over all heads of a row as one vector, before the rotation."""


class DenseActivation(Enum):
    """The activation of a dense layer after pooling."""

    NONE = "none"
    TANH = "tanh"
    GELU = "gelu"
    """Exact GELU, with the error function."""
