"""qwen3next: Qwen 3 Next. A qwen35moe in which adjacent heads of a delta net share a key, and beta and decay are fused:

```
blk.0.ssm_ba:  [ beta of the heads of key head 0 | their decay | beta of those of key head 1 | their decay | … ]
```
"""

from __future__ import annotations

from dataclasses import replace

from stoker.backends.native.architectures.common import decoder, layer, layers, rope
from stoker.backends.native.architectures.draft_head import with_draft_head
from stoker.backends.native.architectures.qwen35 import delta_net, has_attention
from stoker.backends.native.architectures.qwen35moe import further_layer, gated_experts
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.layer_parts import Linear, Recurrence
from stoker.backends.native.spec import DecoderSpec, Layer


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    spec = decoder(
        model,
        ropes=(rope(model, RopePairs.HALVES),),
        layers=layers(model, _layer),
    )
    return with_draft_head(model, spec, further_layer)


def _layer(model: Hyperparameters, index: int) -> Layer:
    if has_attention(model, index):
        return further_layer(model, index)
    more = {"feed_forward_norm": model.norm(f"blk.{index}.post_attention_norm"), **gated_experts(model, index)}
    parts = delta_net(model, index)
    recurrence = _with_gates(model, index, parts["recurrence"])
    parts |= {"recurrence": recurrence}
    if model.has(f"blk.{index}.ssm_in.weight"):
        parts |= _of_old_file(model, index, recurrence)
    return layer(model, index, **parts, **more)


def _of_old_file(model: Hyperparameters, index: int, of: Recurrence) -> dict[str, Linear]:
    """The matrices of a delta net in an old file, where they are fused:

    ```
    blk.0.ssm_in:  [ query of key head 0 | its key | values of its heads | their gates | query of key head 1 | … ]
    ```
    """
    values = of.num_heads // of.num_key_heads * of.value_size
    sizes = {"query": of.key_size, "key": of.key_size, "value": values, "mixed_gate": values}
    together, first, found = sum(sizes.values()), 0, dict[str, Linear]()
    for name, run in sizes.items():
        rows = model.linear(f"blk.{index}.ssm_in", run * of.num_key_heads, model.hidden_size, first_row=first)
        found[name] = replace(rows, run=run, gap=together - run)
        first += run
    return found


def _with_gates(model: Hyperparameters, index: int, of: Recurrence) -> Recurrence:
    run, stem = of.num_heads // of.num_key_heads, f"blk.{index}.ssm_ba"
    beta, decay = (
        replace(model.linear(stem, of.num_heads, model.hidden_size, first_row=first), run=run) for first in (0, run)
    )
    return replace(of, are_interleaved=False, beta=beta, decay=decay)
