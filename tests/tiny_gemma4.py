"""What tiny models of Gemma 4 have besides: heads by layer, shared keys, inputs for layers, experts beside a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tests.tiny_models import TinyModel

Shapes = list[tuple[str, tuple[int, ...]]]

WIDTH = 32
"""Of what each token has for each layer, unless keys say otherwise."""


def gemma4_keys(model: TinyModel) -> dict[str, Any]:
    """Every other layer has a window, and heads of half the size."""
    size = model.head_size
    return {
        "attention.sliding_window": 24,
        "attention.sliding_window_pattern": [index % 2 == 0 for index in range(model.num_layers)],
        "attention.key_length": 2 * size,
        "attention.value_length": 2 * size,
        "attention.key_length_swa": size,
        "attention.value_length_swa": size,
        "rope.dimension_count": 2 * size,
        "rope.dimension_count_swa": size,
        "rope.freq_base_swa": 1000.0,
        "final_logit_softcapping": 3.0,
        "embedding_length_per_layer_input": 0 if model.num_experts else WIDTH,
    }


def gemma4_vectors(model: TinyModel) -> dict[str, NDArray[np.float32]]:
    """A part of the pairs of the larger heads is not rotated."""
    divisors = np.ones(model.head_size, np.float32)
    divisors[model.head_size // 4 :] = 1e30
    return {"rope_freqs.weight": divisors}


def gemma4_ends(model: TinyModel) -> dict[str, tuple[int, ...]]:
    """Tensors of no layer."""
    if model.num_experts:
        return {}
    size = _width(model)
    width = size * model.num_layers
    return {
        "per_layer_token_embd.weight": (model.vocab_size, width),
        "per_layer_model_proj.weight": (width, model.hidden_size),
        "per_layer_proj_norm.weight": (size,),
    }


def gemma4_layer(model: TinyModel, index: int) -> Shapes:
    """Of the models with experts, layers without a window have no values: keys are taken for them."""
    num, num_kv = model.heads_of(index)
    hidden, inner = model.hidden_size, model.layer_sizes[index] if model.layer_sizes else model.feed_forward_size
    size = model.head_size * (1 if index % 2 == 0 else 2)
    norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    shapes: Shapes = [
        *((f"{name}.weight", (hidden,)) for name in norms),
        ("attn_q.weight", (num * size, hidden)),
        ("attn_q_norm.weight", (size,)),
        ("attn_output.weight", (hidden, num * size)),
        ("ffn_gate.weight", (inner, hidden)),
        ("ffn_up.weight", (inner, hidden)),
        ("ffn_down.weight", (hidden, inner)),
        ("layer_output_scale.weight", (1,)),
    ]
    if index < model.num_layers - model.keys.get("attention.shared_kv_layers", 0):
        shapes += [("attn_k.weight", (num_kv * size, hidden)), ("attn_k_norm.weight", (size,))]
        shapes += [("attn_v.weight", (num_kv * size, hidden))] if index % 2 == 0 or not model.num_experts else []
    return shapes + (_experts(model) if model.num_experts else _injection(model))


def _injection(model: TinyModel) -> Shapes:
    hidden, size = model.hidden_size, _width(model)
    return [("inp_gate.weight", (size, hidden)), ("proj.weight", (hidden, size)), ("post_norm.weight", (hidden,))]


def _width(model: TinyModel) -> int:
    return model.keys.get("embedding_length_per_layer_input", WIDTH)


def _experts(model: TinyModel) -> Shapes:
    hidden, count, size = model.hidden_size, model.num_experts, model.expert_size
    norms = ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")
    return [
        *((f"{name}.weight", (hidden,)) for name in norms),
        ("ffn_gate_inp.weight", (count, hidden)),
        ("ffn_gate_inp.scale", (hidden,)),
        ("ffn_gate_up_exps.weight", (count, 2 * size, hidden)),
        ("ffn_down_exps.weight", (count, hidden, size)),
        ("ffn_down_exps.scale", (count,)),
    ]
