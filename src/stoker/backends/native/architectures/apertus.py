"""apertus: Apertus. A qwen3 without feed-forward gates; its activation (xIELU) has parameters for each layer."""

from __future__ import annotations

from math import exp, log1p

from stoker.backends.native.architectures.common import (
    DIVISORS,
    decoder,
    head_norms,
    layer_without_gate,
    layers,
    rope,
)
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.layer_parts import Xielu
from stoker.backends.native.spec import Activation, DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return decoder(
        model,
        activation=Activation.XIELU,
        ropes=(rope(model, RopePairs.HALVES, divisors=DIVISORS),),
        layers=layers(model, _layer),
        unused=frozenset({DIVISORS}),
    )


def _layer(model: Hyperparameters, index: int) -> Layer:
    below, above, slope, end = (
        model.numbers_of_layers(f"xielu.{name}")[index] for name in ("alpha_n", "alpha_p", "beta", "eps")
    )
    xielu = Xielu(below=slope + _softplus(below), above=_softplus(above), slope=slope, end=end)
    return layer_without_gate(model, index, **head_norms(model, index), xielu=xielu)


def _softplus(x: float) -> float:
    return max(x, 0.0) + log1p(exp(-abs(x)))
