"""The choices of which a decoder is described: each is a way that some architectures compute something."""

from __future__ import annotations

from enum import Enum


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
    RELU_SQUARED = "relu_squared"
    """`max(gate, 0)²`, and there is no `up`."""
    GELU = "gelu"
    """GELU by the error function."""
    GELU_ALONE = "gelu_alone"
    """GELU by the error function, without `up`."""
    GELU_TANH_ALONE = "gelu_tanh_alone"
    """GELU by the tanh formula, without `up`."""
    RELU = "relu"
    """`max(gate, 0)`."""
    XIELU = "xielu"
    """See `Xielu`; there is no `up`."""


class Routing(Enum):
    """What a router's outputs become."""

    SOFTMAX = "softmax"
    """Over all experts; then the best are chosen."""
    SIGMOID = "sigmoid"
    """Of each; then the best are chosen."""
    SOFTMAX_OF_CHOSEN = "softmax_of_chosen"
    """The best are chosen as they are; then softmax over these."""
    SIGMOID_OF_CHOSEN = "sigmoid_of_chosen"
    """The best are chosen as they are; then of each of these."""


class NormKind(Enum):
    """What the norms of the residual stream do."""

    RMS = "rms"
    """`x / sqrt(mean(x²) + eps) * weight`"""
    LAYER = "layer"
    """`(x - mean(x)) / sqrt(variance(x) + eps) * weight`"""
    LAYER_BIASED = "layer_biased"
    """Layer norm plus a bias, which every such norm has."""
    RMS_BIASED = "rms_biased"
    """RMS norm plus a bias, which every such norm has."""


class Mixer(Enum):
    """How a layer without attention brings the positions of a sequence together."""

    SHORT_CONV = "short_conv"
    """`output(c * convolution(b * x))`, where `query` gives b, `key` gives c and `value` gives x."""
    DELTA_NET = "delta_net"
    """A gated delta net: `S = decay S + k (beta (v - (decay S)ᵀ k))ᵀ`, and each position gives `Sᵀ q / sqrt(size q)`.
    q, k and v are convolved and go through SiLU; q and k are divided by their lengths."""
    MAMBA2 = "mamba2"
    """`S = decay S + k (step v)ᵀ`, and each position gives `Sᵀ q + skip v`. q, k and v are convolved and go through
    SiLU; papers call them C, B and x."""
    KDA = "kda"
    """A delta net in which each element of a key has a decay of its own (Kimi Delta Attention, arXiv:2510.26692), and
    whose gate goes through a sigmoid. Two matrices make the decays, and two the gate."""
    MAMBA = "mamba"
    """`S[n] = e^(step decay_rate[n]) S[n] + B[n] step x` of each channel, which gives `C S + skip x`. `value` gives x,
    which is convolved and goes through SiLU; `low` makes B, C and what the steps are made of from that."""


class HeadNorms(Enum):
    """When the norms of queries and keys are computed, and over what."""

    BEFORE_ROPE = "before_rope"
    """Over each head alone."""
    AFTER_ROPE = "after_rope"
    """Over each head alone, when it is rotated already."""
    WHOLE_ROW = "whole_row"
    """Over all heads of a row as one vector, before the rotation."""


class DenseActivation(Enum):
    """What the outputs of a matrix behind pooling go through."""

    NONE = "none"
    TANH = "tanh"
    GELU = "gelu"
    """By the error function."""
