"""Describes layers with mixtures of experts, in the form that most architectures have in files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stoker.backends.native.architectures.common import gate_and_up, layer
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import Routing
from stoker.backends.native.layer_parts import Experts, Linear
from stoker.backends.native.spec import Layer

_ROUTINGS = {1: Routing.SOFTMAX, 2: Routing.SIGMOID, 3: Routing.SOFTMAX_OF_CHOSEN}
"""Routings by their number in GGUF files (`expert_gating_func`)."""


def expert_layer(
    model: Hyperparameters,
    index: int,
    *,
    size: int = 0,
    shared_size: int = 0,
    routing: Mapping[str, Any] | None = None,
    **more: Any,
) -> Layer:
    """A layer with experts, and a shared expert if `shared_size` is not 0.

    Args:
        model: the file.
        index: index of the layer.
        size: inner size of one expert; 0 = as the file says.
        shared_size: inner size of the shared expert, which computes all rows; 0 = there is none.
        routing: fields of `Experts` that differ from the defaults.
        more: further fields of `Layer`.
    """
    parts = expert_parts(model, index, size=size, shared_size=shared_size, routing=routing)
    return layer(model, index, **parts | more)


def layer_behind_dense(
    model: Hyperparameters, index: int, *, shared_size: int, routing: Mapping[str, Any], **more: Any
) -> Layer:
    """A layer with experts, or a dense one if it is one of the `leading_dense_block_count` first. Arguments: see
    `expert_layer`."""
    if index < model.integer("leading_dense_block_count", 0, low=0):
        return layer(model, index, experts=None, **more)
    return expert_layer(model, index, shared_size=shared_size, routing=routing, **more)


def chosen_as_said(model: Hyperparameters, index: int, default: Routing) -> dict[str, Any]:
    """How the file says that experts are chosen and weighted, as fields of `Experts`."""
    bias = f"blk.{index}.exp_probs_b.bias"
    return {
        "routing": routing_of(model, default),
        "is_normalised": model.flag("expert_weights_norm", default=False),
        "selection_bias": model.vector(bias, model.num_experts) if model.has(bias) else None,
    }


def size_of_shared(model: Hyperparameters) -> int:
    """Inner size of the shared expert, which is as large as `expert_shared_count` experts."""
    return model.integer("expert_shared_count", 0, low=0) * expert_size(model)


def expert_parts(
    model: Hyperparameters, index: int, *, size: int = 0, shared_size: int = 0, routing: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The experts and the shared expert, as fields of `Layer`. Arguments: see `expert_layer`."""
    block, hidden = f"blk.{index}", model.hidden_size
    gate, up, down = None, None, None
    if shared_size:
        gate, up = gate_and_up(model, block, shared_size, "_shexp")
        down = model.linear(f"{block}.ffn_down_shexp", hidden, shared_size)
    found = experts(model, index, size=size or expert_size(model), **(routing or {}))
    return {"experts": found, "gate": gate, "up": up, "down": down}


def experts(model: Hyperparameters, index: int, *, size: int, has_up: bool = True, **more: Any) -> Experts:
    """The experts of a layer.

    Args:
        model: the file.
        index: index of the layer.
        size: inner size of one expert.
        has_up: experts have an up matrix besides the gate; otherwise the file calls the only matrix `up`.
        more: fields of `Experts` that differ from the defaults.

    Raises:
        ModelUnsupported: the matrices are laid out in another way.
    """
    block, hidden, count = f"blk.{index}", model.hidden_size, model.num_experts
    if not size or size % 32:
        model.refuse(f"experts of {size} elements (multiples of 32 can)")
    gate, up = _gates(model, block, size, has_up=has_up)
    used = model.integer("expert_used_count", high=count)
    more = {"scale": model.optional_number("expert_weights_scale") or 1.0, **_groups(model, used), **more}
    return Experts(
        count=count,
        used=used,
        size=size,
        router=model.linear(f"{block}.ffn_gate_inp", count, hidden),
        gate=gate,
        up=up,
        down=model.stacked(f"{block}.ffn_down_exps", hidden, size),
        **more,
    )


def _gates(model: Hyperparameters, block: str, size: int, *, has_up: bool) -> tuple[Linear, Linear | None]:
    """The gate and up matrices of all experts, which may be fused:

    ```
    blk.0.ffn_gate_up_exps:  | expert 0: rows of gate | rows of up | expert 1: rows of gate | …
    ```
    """
    gate, up, both = (f"{block}.ffn_{part}_exps" for part in ("gate", "up", "gate_up"))
    if model.has(f"{both}.weight"):
        all_rows = replace(model.stacked(both, size, model.hidden_size), run=size)
        return all_rows, replace(all_rows, first_row=size)
    if not model.has(f"{up}.weight") or model.has(f"{gate}.weight") != has_up:
        model.refuse("it has no tensor for the gates of all experts of a layer, and one for their `up`")
    plain = model.stacked(up, size, model.hidden_size)
    return (model.stacked(gate, size, model.hidden_size), plain) if has_up else (plain, None)


def expert_size(model: Hyperparameters) -> int:
    """Inner size of each expert. By default the dense size divided by the number of used experts.

    Raises:
        ModelUnsupported: the size differs between layers.
    """
    used = model.integer("expert_used_count", high=model.num_experts)
    usual = [size // used for size in model.feed_forward_sizes]
    sizes = set(model.counts_of_layers("expert_feed_forward_length", usual))
    return sizes.pop() if len(sizes) == 1 else model.refuse("experts differ in size from layer to layer")


def routing_of(model: Hyperparameters, default: Routing) -> Routing:
    """The routing that the file names; `default` if it names none.

    Raises:
        ModelUnsupported: the file names an unknown routing.
    """
    number = model.integer("expert_gating_func", 0, low=0)
    if number and number not in _ROUTINGS:
        model.refuse(f"its routing number {number}")
    return _ROUTINGS.get(number, default)


def _groups(model: Hyperparameters, used: int) -> dict[str, int]:
    """The numbers of all groups of experts and of used ones, as fields of `Experts`.

    Raises:
        ModelFileInvalid: the used groups have too few experts.
    """
    num_groups = model.integer("expert_group_count", 0, low=0) or 1
    used_groups = model.integer("expert_group_used_count", 0, low=0) or 1
    if model.num_experts % num_groups or not used <= model.num_experts // num_groups * min(used_groups, num_groups):
        model.fail(f"{used} of {model.num_experts} experts cannot be of {used_groups} of {num_groups} groups")
    return {"num_groups": num_groups, "used_groups": min(used_groups, num_groups)}
