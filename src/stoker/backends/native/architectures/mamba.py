"""Mamba, whose layers have neither attention nor feed-forwards, and Jamba, which also has layers with attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from stoker.backends.native.architectures.common import WITHOUT_FEED_FORWARD, layer, plain_decoder
from stoker.backends.native.architectures.experts import expert_layer
from stoker.backends.native.architectures.mamba2 import mamba2
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import Mixer, RopePairs
from stoker.backends.native.layer_parts import Linear, Norm, Recurrence
from stoker.backends.native.rope import no_rope
from stoker.backends.native.spec import DecoderSpec, Layer

_MakeNorm: TypeAlias = Callable[[str, int], Norm]
"""Makes a norm from the name of a tensor, without `.weight`, and its size."""

_MAX_TAPS, _MAX_STATE = 8, 1 << 12
_STATE_GRANULE, _ROW_GRANULE = 16, 32
"""The size of a channel's state, and of a row that a matrix multiplies, must be a multiple of these."""


def describe_mamba(model: Hyperparameters) -> DecoderSpec:
    """Mamba 1, Falcon Mamba."""
    norm = _plain_norm if model.flag("ssm.dt_b_c_rms", default=False) else None
    return _decoder(model, lambda model, index: _mamba1(model, index, norm))


def describe_mamba2(model: Hyperparameters) -> DecoderSpec:
    """Mamba 2, Codestral Mamba."""
    return _decoder(model, mamba2)


def _plain_norm(_: str, size: int) -> Norm:
    return Norm(weight=None, size=size)


def _decoder(model: Hyperparameters, mixer: Callable[[Hyperparameters, int], dict[str, Any]]) -> DecoderSpec:
    def make(model: Hyperparameters, index: int) -> Layer:
        return layer(model, index, **mixer(model, index), **WITHOUT_FEED_FORWARD)

    return plain_decoder(model, no_rope(RopePairs.HALVES, 0), make)


def describe_jamba(model: Hyperparameters) -> DecoderSpec:
    """Jamba. Layers without heads of keys are Mamba 1, the others have attention without position encoding; some have
    experts instead of a dense feed-forward.
    """
    return plain_decoder(model, no_rope(RopePairs.HALVES, 0), _jamba_layer)


def _jamba_layer(model: Hyperparameters, index: int) -> Layer:
    mixer = {} if model.heads[index].num_kv else _mamba1(model, index, model.norm)
    if not model.has(f"blk.{index}.ffn_gate_inp.weight"):
        return layer(model, index, experts=None, **mixer)
    return expert_layer(model, index, size=model.feed_forward_sizes[index], **mixer)


def _mamba1(model: Hyperparameters, index: int, norm: _MakeNorm | None) -> dict[str, Any]:
    """The parts of a Mamba 1 layer, as fields of `Layer`.

    ```
    blk.0.ssm_in:  [ rows of x (values) | of the gate ]
    blk.0.ssm_x:   [ rows of the low-rank steps | of B | of C ]
    ```

    Args:
        model: the file.
        index: index of the layer.
        norm: makes the norms of the low-rank steps, of B and of C; None = they have none.

    Raises:
        ModelUnsupported: the kernels do not support the size of states or steps.
    """
    block, hidden = f"blk.{index}", model.hidden_size
    values, size = model.integer("ssm.inner_size"), model.integer("ssm.state_size", high=_MAX_STATE)
    rank = model.integer("ssm.time_step_rank")
    if size % _STATE_GRANULE or rank % _ROW_GRANULE or values % _ROW_GRANULE:
        model.refuse(f"a scan of {values} channels with states of {size} and steps of {rank} numbers")
    stem = f"{block}.ssm_in"
    return {
        "heads": None,
        "recurrence": _recurrence(model, block, (values, size, rank), norm),
        "query": None,
        "key": None,
        "value": model.linear(stem, values, hidden),
        "mixed_gate": model.linear(stem, values, hidden, first_row=values),
        "output": model.linear(f"{block}.ssm_out", hidden, values),
    }


def _recurrence(model: Hyperparameters, block: str, sizes: tuple[int, int, int], norm: _MakeNorm | None) -> Recurrence:
    values, size, rank = sizes
    taps = model.integer("ssm.conv_kernel", low=2, high=_MAX_TAPS)
    rates = model.vector(f"{block}.ssm_a", size * values)
    return Recurrence(
        mixer=Mixer.MAMBA,
        taps=taps,
        convolution=model.convolution(f"{block}.ssm_conv1d", taps, values),
        convolution_bias=model.vector(f"{block}.ssm_conv1d.bias", values),
        num_heads=values,
        num_key_heads=1,
        key_size=size,
        value_size=1,
        low=model.linear(f"{block}.ssm_x", rank + 2 * size, values),
        wide_decay=_steps(model, block, values, rank),
        decay_rate=Norm(weight=rates.weight, size=rates.size, taps=size),
        skip=model.vector(f"{block}.ssm_d", values),
        low_norm=norm and norm(f"{block}.ssm_dt_norm", rank),
        key_norm=norm and norm(f"{block}.ssm_b_norm", size),
        query_norm=norm and norm(f"{block}.ssm_c_norm", size),
    )


def _steps(model: Hyperparameters, block: str, values: int, rank: int) -> Linear:
    """The matrix that computes the steps. Raises ModelFileInvalid if it has no bias."""
    steps = model.linear(f"{block}.ssm_dt", values, rank)
    return steps if steps.bias else model.fail(f"it has no tensor `{block}.ssm_dt.bias`")
