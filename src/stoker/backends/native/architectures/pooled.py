"""Describes the layers after pooling: the projection of EmbeddingGemma, and classifiers of rerankers."""

from __future__ import annotations

from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.layer_parts import Norm
from stoker.backends.native.spec import DecoderSpec, Dense, DenseActivation, Pooled
from stoker.core.embedding import Pooling

_RANK = 4
"""llama.cpp's `LLAMA_POOLING_TYPE_RANK`."""
_CLASSIFIER = ("cls.weight", "cls.bias", "cls.norm.weight", "cls.output.weight", "cls.output.bias")
_BY_NUMBER = {1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST}


def read_pooled(model: Hyperparameters, spec: DecoderSpec) -> Pooled | None:
    """The layers after pooling; None = the file has none.

    Raises:
        ModelUnsupported: the file is a reranker without a classifier.
    """
    if model.integer("pooling_type", 0, low=0, high=1 << 16) == _RANK:
        dense = _classifier(model, spec)
        return Pooled(dense=dense, is_classifier=True, pooling=_looked_at(model, spec))
    dense = _projection(model)
    return Pooled(dense=dense) if dense else None


def unused_classifier(model: Hyperparameters, spec: DecoderSpec) -> frozenset[str]:
    """Classifier tensors in the file of a model that is not a reranker."""
    if spec.pooled is not None and spec.pooled.is_classifier:
        return frozenset()
    return frozenset(name for name in _CLASSIFIER if model.has(name))


def _projection(model: Hyperparameters) -> tuple[Dense, ...]:
    found: list[Dense] = []
    size = model.hidden_size
    for stem in ("dense_2", "dense_3"):
        if model.has(f"{stem}.weight"):
            rows = model.num_rows(f"{stem}.weight")
            found.append(Dense(linear=model.linear(stem, rows, size)))
            size = rows
    return tuple(found)


def _classifier(model: Hyperparameters, spec: DecoderSpec) -> tuple[Dense, ...]:
    found: list[Dense] = []
    size = model.hidden_size
    if model.has("cls.weight"):
        rows = model.num_rows("cls.weight")
        is_modern = spec.architecture == "modern-bert"
        activation = DenseActivation.GELU if is_modern else DenseActivation.TANH
        norm = Norm(weight="cls.norm.weight", size=rows) if model.has("cls.norm.weight") else None
        found.append(Dense(linear=model.linear("cls", rows, size), activation=activation, norm=norm))
        size = rows
    if model.has("cls.output.weight"):
        found.append(Dense(linear=model.linear("cls.output", model.num_rows("cls.output.weight"), size)))
    return tuple(found) or model.refuse("it is to rank texts, and has no classifier")


def _looked_at(model: Hyperparameters, spec: DecoderSpec) -> Pooling:
    if not spec.sees_ahead:
        return Pooling.LAST
    usual = 1 if spec.architecture == "modern-bert" else 2
    return _BY_NUMBER.get(model.integer("classifier.pooling_type", usual, low=0, high=1 << 16), Pooling.CLS)
