"""Draft heads (multi-token prediction, MTP): layers of a model's own file that predict the token after next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.layer_parts import Linear
from stoker.backends.native.spec import DecoderSpec, Join, Layer


def with_draft_head(
    model: Hyperparameters, spec: DecoderSpec, make: Callable[[Hyperparameters, int], Layer]
) -> DecoderSpec:
    """The decoder with the first draft head of its file; unchanged if the file has none.

    ```
    blk.N.nextn.eh_proj(| enorm(embedding) | hnorm(hidden state) |) -> layer N -> shared_head_norm -> head
    ```

    Args:
        model: the file.
        spec: the decoder without its head.
        make: makes a layer from its index, given the file with its further layers.
    """
    index, stem = model.num_layers, f"blk.{model.num_layers}.nextn"
    if not model.has(f"{stem}.eh_proj.weight"):
        return spec
    hidden = model.hidden_size
    join = Join(
        hidden_size=hidden,
        projection=model.linear(f"{stem}.eh_proj", hidden, 2 * hidden),
        embedding_norm=model.norm(f"{stem}.enorm"),
        hidden_norm=model.norm(f"{stem}.hnorm"),
    )
    has_norm = model.has(f"{stem}.shared_head_norm.weight")
    head = replace(
        spec,
        join=join,
        layers=(make(model.with_further_layers(), index),),
        embedding=_own(model, f"{stem}.embed_tokens", spec.embedding),
        head=_own(model, f"{stem}.shared_head_head", spec.head),
        output_norm=model.norm(f"{stem}.shared_head_norm") if has_norm else spec.output_norm,
        unused=frozenset(),
    )
    return replace(spec, draft_head=head)


def _own(model: Hyperparameters, stem: str, shared: Linear) -> Linear:
    return model.linear(stem, shared.num_rows, shared.num_columns) if model.has(f"{stem}.weight") else shared
