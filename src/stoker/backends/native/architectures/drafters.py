"""Files that draft for another model, whose hidden states they read. Each kind is one module, as an architecture is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TypeAlias, cast

from stoker.backends.native.file import ModelParts
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.spec import DecoderSpec

DescribeDrafter: TypeAlias = Callable[[Hyperparameters, DecoderSpec], DecoderSpec]

DRAFTERS: Mapping[str, str] = {"eagle3": "eagle3", "gemma4-assistant": "gemma4_assistant"}
"""By `general.architecture` the module of this folder that describes such a file."""


def describe_drafter(parts: ModelParts, target: DecoderSpec, context_size: int) -> DecoderSpec:
    """The draft head that a file of one of `DRAFTERS` describes. Whether its tensors are like that is not looked at.

    Args:
        parts: the files.
        target: the model that is drafted for.
        context_size: longest sequence that will be computed, in tokens.

    Raises:
        ModelUnsupported: something in it is not known here.
        ModelFileInvalid: the file contradicts itself, or does not fit the model.
    """
    module = import_module(f"{__package__}.{DRAFTERS[parts.first.architecture]}")
    describe = cast(DescribeDrafter, module.describe)
    return describe(Hyperparameters(parts, context_size, vocab_size=target.vocab_size), target)
