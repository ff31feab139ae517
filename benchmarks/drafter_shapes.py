"""The shapes of files that draft for another model: EAGLE-3 for any, and the assistant of Gemma 4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
from families import Family, Tensor

_EAGLE_TOKENS = 32000
_ASSISTANT_HIDDEN, _ASSISTANT_INNER, _ASSISTANT_HEADS = 256, 2048, 4
_ASSISTANT_WINDOWED = (True, True, True, False)


def drafter_for(path: Path) -> Family:
    """What drafts for the model in a file."""
    fields = gguf.GGUFReader(path).fields
    architecture = fields["general.architecture"].contents()
    own = {key.removeprefix(f"{architecture}."): field.contents() for key, field in fields.items()}
    return _assistant(own) if architecture == "gemma4" else _eagle(own)


def _eagle(target: dict[str, Any]) -> Family:
    """A layer of the model's shape, which has its embedding and a part of its vocabulary."""
    hidden, layers = target["embedding_length"], target["block_count"]
    heads, kv_heads = target["attention.head_count"], target["attention.head_count_kv"]
    size, inner = target.get("attention.key_length", hidden // heads), target["feed_forward_length"]
    norms = ("attn_norm", "attn_norm_2", "ffn_norm")
    tensors: tuple[Tensor, ...] = (
        ("fc.weight", (hidden, 3 * hidden)),
        *((f"blk.0.{name}.weight", (hidden,)) for name in norms),
        ("blk.0.attn_q.weight", (heads * size, 2 * hidden)),
        ("blk.0.attn_k.weight", (kv_heads * size, 2 * hidden)),
        ("blk.0.attn_v.weight", (kv_heads * size, 2 * hidden)),
        ("blk.0.attn_output.weight", (hidden, heads * size)),
        ("blk.0.ffn_gate.weight", (inner, hidden)),
        ("blk.0.ffn_up.weight", (inner, hidden)),
        ("blk.0.ffn_down.weight", (hidden, inner)),
        ("output.weight", (_EAGLE_TOKENS, hidden)),
    )
    keys = {
        "block_count": 1,
        "context_length": target["context_length"],
        "feed_forward_length": inner,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": size,
        "rope.freq_base": 500000.0,
        "target_layers": [2, layers // 2, layers - 3],
        "target_hidden_size": hidden,
    }
    return Family("eagle3", hidden, keys, tensors, has_embedding=False, num_drafted_tokens=_EAGLE_TOKENS)


def _assistant(target: dict[str, Any]) -> Family:
    hidden, inner, size = _ASSISTANT_HIDDEN, _ASSISTANT_INNER, target["embedding_length"]

    def layer(index: int) -> list[Tensor]:
        head = target["attention.key_length_swa" if _ASSISTANT_WINDOWED[index] else "attention.key_length"]
        norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        own: list[Tensor] = [
            *((f"{name}.weight", (hidden,)) for name in norms),
            ("attn_q.weight", (_ASSISTANT_HEADS * head, hidden)),
            ("attn_q_norm.weight", (head,)),
            ("attn_output.weight", (hidden, _ASSISTANT_HEADS * head)),
            ("ffn_gate.weight", (inner, hidden)),
            ("ffn_up.weight", (inner, hidden)),
            ("ffn_down.weight", (hidden, inner)),
            ("layer_output_scale.weight", (1,)),
        ]
        return [(f"blk.{index}.{name}", shape) for name, shape in own]

    num_layers = len(_ASSISTANT_WINDOWED)
    tensors = (
        ("nextn.pre_projection.weight", (hidden, 2 * size)),
        ("nextn.post_projection.weight", (size, hidden)),
        *(tensor for index in range(num_layers) for tensor in layer(index)),
        ("rope_freqs.weight", (target["attention.key_length"] // 2,)),
    )
    taken = ("attention.key_length", "attention.value_length", "attention.sliding_window", "rope.", "context_length")
    keys = {
        **{key: value for key, value in target.items() if key.startswith(taken)},
        "block_count": num_layers,
        "nextn_predict_layers": num_layers,
        "embedding_length_out": size,
        "feed_forward_length": inner,
        "attention.head_count": _ASSISTANT_HEADS,
        "attention.head_count_kv": target["attention.head_count_kv"],
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window_pattern": list(_ASSISTANT_WINDOWED),
    }
    return Family("gemma4-assistant", hidden, keys, tensors)
