"""Draft heads in files of their own, which read the hidden states of another model. Each kind is one module here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TypeAlias, cast

from stoker.backends.native.file import ModelParts
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.spec import DecoderSpec

DescribeDrafter: TypeAlias = Callable[[Hyperparameters, DecoderSpec], DecoderSpec]

DRAFTERS: Mapping[str, str] = {"eagle3": "eagle3", "gemma4-assistant": "gemma4_assistant"}
"""Modules of this folder that describe files of draft heads, by `general.architecture`."""


def describe_drafter(parts: ModelParts, target: DecoderSpec, context_size: int) -> DecoderSpec:
    """The draft head that a file of one of `DRAFTERS` describes. Its tensors are not checked.

    Args:
        parts: the files of the draft head.
        target: the model for which the head drafts.
        context_size: length of the longest sequence, in tokens.

    Raises:
        ModelUnsupported: the file needs something that is not supported.
        ModelFileInvalid: the file contradicts itself, or does not fit the target.
    """
    module = import_module(f"{__package__}.{DRAFTERS[parts.first.architecture]}")
    describe = cast(DescribeDrafter, module.describe)
    return describe(Hyperparameters(parts, context_size, vocab_size=target.vocab_size), target)
