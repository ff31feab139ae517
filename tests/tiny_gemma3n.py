"""What tiny models of Gemma 3n have besides: four streams, a part of low rank, inputs for layers, shared keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tests.tiny_models import TinyModel

Shapes = list[tuple[str, tuple[int, ...]]]

WIDTH, RANK, STREAMS = 256, 64, 4
"""The only ones that libllama computes."""
WITH_KEYS, WITH_CUT = 20, 10
"""Layers with keys of their own, and layers with cut gates: libllama knows no others."""
NEVER_QUANTISED = ("altup", "laurel", "per_layer_model_proj")
"""Parts of names."""


def gemma3n_keys(model: TinyModel) -> dict[str, Any]:
    """As converters write them."""
    layers = range(model.num_layers)
    return {
        "attention.sliding_window": 24,
        "attention.sliding_window_pattern": [index % 5 < 4 for index in layers],
        "attention.shared_kv_layers": max(0, model.num_layers - WITH_KEYS),
        "embedding_length_per_layer_input": WIDTH,
        "altup.active_idx": 0,
        "altup.num_inputs": STREAMS,
        "activation_sparsity_scale": [1.6448533535003662 if index < WITH_CUT else float("-inf") for index in layers],
        "rope.freq_base": 100000.0,
        "final_logit_softcapping": 30.0,
    }


def gemma3n_vectors(model: TinyModel) -> dict[str, NDArray[np.float32]]:
    """The small matrices, so large that streams differ, and that no stream grows from layer to layer."""
    rng, found = np.random.default_rng(model.seed + 1), dict[str, NDArray[np.float32]]()
    for index in range(model.num_layers):
        for name, shape, size in (("predict", (STREAMS**2, STREAMS), 0.1), ("correct", (STREAMS, STREAMS), 0.2)):
            found[f"blk.{index}.altup_{name}_coef.weight"] = rng.normal(0, size, shape).astype(np.float32)
        sizes = rng.normal(model.hidden_size**0.5, 1, model.hidden_size)
        found[f"blk.{index}.altup_router_norm.weight"] = sizes.astype(np.float32)
    return found


def gemma3n_ends(model: TinyModel) -> dict[str, tuple[int, ...]]:
    """Tensors of no layer."""
    hidden, width = model.hidden_size, WIDTH * model.num_layers
    return {
        "altup_proj.weight": (STREAMS - 1, hidden, hidden),
        "altup_unembd_proj.weight": (STREAMS - 1, hidden, hidden),
        "per_layer_token_embd.weight": (model.vocab_size, width),
        "per_layer_model_proj.weight": (width, hidden),
        "per_layer_proj_norm.weight": (WIDTH,),
    }


def gemma3n_layer(model: TinyModel, index: int) -> Shapes:
    """Layers that share keys have matrices for them nonetheless."""
    num, num_kv = model.heads_of(index)
    hidden, size = model.hidden_size, model.head_size
    inner = model.layer_sizes[index] if model.layer_sizes else model.feed_forward_size
    norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm")
    of_streams = ("laurel_post_norm", "altup_router_norm", "altup_correct_scale")
    return [
        *((f"{name}.weight", (hidden,)) for name in (*norms, *of_streams)),
        *((f"attn_{part}_norm.weight", (size,)) for part in "qk"),
        ("attn_q.weight", (num * size, hidden)),
        ("attn_k.weight", (num_kv * size, hidden)),
        ("attn_v.weight", (num_kv * size, hidden)),
        ("attn_output.weight", (hidden, num * size)),
        ("ffn_gate.weight", (inner, hidden)),
        ("ffn_up.weight", (inner, hidden)),
        ("ffn_down.weight", (hidden, inner)),
        ("inp_gate.weight", (WIDTH, hidden)),
        ("proj.weight", (hidden, WIDTH)),
        ("altup_router.weight", (STREAMS, hidden)),
        ("laurel_l.weight", (RANK, hidden)),
        ("laurel_r.weight", (hidden, RANK)),
    ]
