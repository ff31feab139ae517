"""Describes layers with the Mamba 2 mixer, in the form that architectures have in files."""

from __future__ import annotations

from typing import Any

from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import Mixer
from stoker.backends.native.layer_parts import Recurrence

_MAX_TAPS, _MAX_HEADS = 8, 1 << 16
_GRANULE = 16
"""The sizes of heads and states must be multiples of this."""


def mamba2(model: Hyperparameters, index: int) -> dict[str, Any]:
    """The parts of a Mamba 2 layer, as fields of `Layer`.

    ```
    blk.0.ssm_in:  [ rows of the gate | of x (values) | of B (keys) | of C (queries) | of the steps of heads ]
    ```

    Args:
        model: the file.
        index: index of the layer.

    Raises:
        ModelFileInvalid: sizes contradict one another.
        ModelUnsupported: the kernels do not support the size of heads or states.
    """
    block, hidden = f"blk.{index}", model.hidden_size
    values, size = model.integer("ssm.inner_size"), model.integer("ssm.state_size")
    num_heads = model.integer("ssm.time_step_rank", high=_MAX_HEADS)
    num_groups = model.integer("ssm.group_count", high=_MAX_HEADS)
    if values % num_heads or num_heads % num_groups:
        model.fail(f"a scan of {values} elements cannot have {num_heads} heads in {num_groups} groups")
    if values // num_heads % _GRANULE or size % _GRANULE or values % (2 * _GRANULE):
        model.refuse(f"a scan of {num_heads} heads of {values // num_heads} elements with states of {size}")
    keys, stem = num_groups * size, f"{block}.ssm_in"
    return {
        "heads": None,
        "recurrence": _recurrence(model, block, values, num_heads, num_groups, size),
        "mixed_gate": model.linear(stem, values, hidden),
        "value": model.linear(stem, values, hidden, first_row=values),
        "key": model.linear(stem, keys, hidden, first_row=2 * values),
        "query": model.linear(stem, keys, hidden, first_row=2 * values + keys),
        "output": model.linear(f"{block}.ssm_out", hidden, values),
    }


def _recurrence(
    model: Hyperparameters, block: str, values: int, num_heads: int, num_groups: int, size: int
) -> Recurrence:
    taps, channels = model.integer("ssm.conv_kernel", low=2, high=_MAX_TAPS), values + 2 * num_groups * size
    bias, norm = f"{block}.ssm_conv1d.bias", f"{block}.ssm_norm.weight"
    return Recurrence(
        mixer=Mixer.MAMBA2,
        taps=taps,
        convolution=model.convolution(f"{block}.ssm_conv1d", taps, channels),
        convolution_bias=model.vector(bias, channels) if model.has(bias) else None,
        num_heads=num_heads,
        num_key_heads=num_groups,
        key_size=size,
        value_size=values // num_heads,
        decay=model.linear(
            f"{block}.ssm_in", num_heads, model.hidden_size, first_row=2 * values + 2 * num_groups * size
        ),
        step_bias=model.vector(f"{block}.ssm_dt.bias", num_heads),
        decay_rate=model.vector(f"{block}.ssm_a", num_heads),
        skip=model.vector(f"{block}.ssm_d", num_heads),
        norm=model.vector(norm, values, num_groups) if model.has(norm) else None,
        norm_size=values // num_groups,
        norm_eps=model.norm_eps,
    )
