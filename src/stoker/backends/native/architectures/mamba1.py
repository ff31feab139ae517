"""Describes layers with the Mamba 1 mixer, in the form that architectures have in files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import Mixer
from stoker.backends.native.layer_parts import Linear, Norm, Recurrence

MakeNorm: TypeAlias = Callable[[str, int], Norm]
"""Makes a norm from the name of a tensor, without `.weight`, and its size."""

_MAX_TAPS, _MAX_STATE = 8, 1 << 12
_STATE_GRANULE, _ROW_GRANULE = 16, 32
"""The size of a channel's state, and of a row that a matrix multiplies, must be a multiple of these."""


def mamba1(model: Hyperparameters, index: int, norm: MakeNorm | None) -> dict[str, Any]:
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


def _recurrence(model: Hyperparameters, block: str, sizes: tuple[int, int, int], norm: MakeNorm | None) -> Recurrence:
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
