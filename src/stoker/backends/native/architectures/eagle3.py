"""eagle3: EAGLE-3 (arXiv:2503.01840), a draft head of one layer that reads the inputs of three layers of the target."""

from __future__ import annotations

from dataclasses import replace

from stoker.backends.native.architectures.common import DIVISORS, decoder, layer, rope
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.kinds import RopePairs
from stoker.backends.native.layer_parts import Linear
from stoker.backends.native.spec import DecoderSpec, Join, Layer

NUM_LAYERS = 3
"""Number of layers of the target model whose inputs are fused."""
TOKEN_IDS = "d2t"
"""Tensor with the target model's token id for each row of the output head."""

_ENDS = {"embedding": "token_embd.weight", "head": "output.weight"}
"""Tensors that the file may lack, by field of `DecoderSpec`; those of the target model are used then."""


def describe(model: Hyperparameters, target: DecoderSpec) -> DecoderSpec:
    """See `describe_drafter`. Position 0 has no state before it, and the head was not trained to attend to it.

    ```
    h = fc(| input of layer a | of layer b | of layer c |)          of the target, or x after this layer
    q, k, v of | attn_norm(embedding) | attn_norm_2(h) |;  x = h + …, the rest as in Llama
    ```
    """
    if model.num_layers != 1:
        model.fail(f"it has {model.num_layers} layers, not 1")
    _check_fits(model, target)
    embedding = _embedding(model, target)
    head = _head(model, target, embedding)
    plain = decoder(
        model,
        ropes=(rope(model, RopePairs.ADJACENT, divisors=DIVISORS),),
        layers=(_layer(model),),
        head=head,
        join=_join(model, target),
        lent=frozenset(name for name, tensor in _ENDS.items() if not model.has(tensor)),
        extracted_layers=extracted_layers(model, target),
        unused=frozenset({DIVISORS, TOKEN_IDS}),
    )
    return replace(plain, vocab_size=embedding.num_rows, embedding=embedding)


def extracted_layers(model: Hyperparameters, target: DecoderSpec) -> tuple[int, ...]:
    """Indices of the layers of the target model whose inputs the draft head reads.

    Raises:
        ModelFileInvalid: the file does not name three layers, or the target model lacks one of them.
    """
    found = model.integers("target_layers", NUM_LAYERS)
    beyond = [index for index in found if not 0 <= index < len(target.layers)]
    if beyond:
        model.fail(f"it reads the input of layer {beyond[0]}, and the model has {len(target.layers)} layers")
    return found


def _check_fits(model: Hyperparameters, target: DecoderSpec) -> None:
    size = model.integer("target_hidden_size")
    if size != target.hidden_size:
        model.fail(f"it drafts for a model with hidden states of {size} numbers, not {target.hidden_size}")
    if target.streams is not None:
        model.fail(f"it reads hidden states, and a layer of {target.architecture} has several for each token")


def _embedding(model: Hyperparameters, target: DecoderSpec) -> Linear:
    if not model.has("token_embd.weight"):
        if model.hidden_size != target.hidden_size:
            model.fail(
                f"it has no `token_embd.weight`, and rows of the model's have another size: {target.hidden_size}"
            )
        return target.embedding
    if model.vocab_size < target.vocab_size:
        model.fail(f"it has embeddings of {model.vocab_size} tokens, and the model has {target.vocab_size}")
    return Linear(weight="token_embd.weight", num_rows=model.vocab_size, num_columns=model.hidden_size)


def _head(model: Hyperparameters, target: DecoderSpec, embedding: Linear) -> Linear:
    if not model.has("output.weight"):
        if model.has(TOKEN_IDS) or model.hidden_size != target.hidden_size:
            model.fail("it has no `output.weight`, and the model's does not fit it")
        return target.head
    num_rows = model.num_rows("output.weight")
    if not model.has(TOKEN_IDS) and num_rows < target.vocab_size:
        model.fail(f"its head has {num_rows} rows, and there is no `{TOKEN_IDS}` that says which tokens these are")
    return model.linear("output", num_rows, model.hidden_size)


def _join(model: Hyperparameters, target: DecoderSpec) -> Join:
    size = NUM_LAYERS * target.hidden_size
    has_norm = model.flag("norm_before_fc", default=False)
    return Join(
        hidden_size=model.hidden_size,
        projection=None,
        embedding_norm=model.norm("blk.0.attn_norm"),
        hidden_norm=model.norm("blk.0.attn_norm_2"),
        fuse=model.linear("fc", model.hidden_size, size),
        fuse_norm=model.norm("enc.output_norm", size) if has_norm else None,
        keeps_norm=model.flag("norm_before_residual", default=False),
        gives_sum=True,
        first_position=1,
    )


def _layer(model: Hyperparameters) -> Layer:
    heads, both = model.heads[0], 2 * model.hidden_size
    if not heads.num or not heads.num_kv:
        model.fail("it has no heads of keys and values")
    return layer(
        model,
        0,
        attention_norm=None,
        query=model.linear("blk.0.attn_q", heads.num * heads.size, both),
        key=model.linear("blk.0.attn_k", heads.num_kv * heads.size, both),
        value=model.linear("blk.0.attn_v", heads.num_kv * heads.size, both),
    )
