"""Describes drafters: draft heads in a file of their own, which read the hidden states of another, the target model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from stoker.backends.native.architectures.drafters import DRAFTERS, describe_drafter
from stoker.backends.native.architectures.eagle3 import TOKEN_IDS
from stoker.backends.native.file import ModelFile, ModelParts
from stoker.backends.native.kv_types import KVType
from stoker.backends.native.layout import Layout, plan_layout
from stoker.backends.native.needs import head_kv_bytes, plan_model
from stoker.backends.native.packed_file import samples_of
from stoker.backends.native.spec import DecoderSpec
from stoker.errors import ModelFileInvalid


@dataclass(frozen=True, slots=True, eq=False)
class Drafter:
    """The description of a draft head in a file of its own."""

    spec: DecoderSpec
    layout: Layout
    parts: ModelParts
    token_ids: NDArray[np.int64] | None
    """The target model's token for each entry of the head's vocabulary, `(rows,)`; None = vocabularies are equal."""

    @property
    def digest(self) -> str:
        """A digest that names the content of the file."""
        digest = hashlib.sha256()
        for file in self.parts.files:
            for part in samples_of(file):
                digest.update(part)
        return digest.hexdigest()[:16]


def reads_another_model(file: ModelFile) -> bool:
    """Whether a file is a drafter that reads the hidden states of its target model."""
    return file.architecture in DRAFTERS


def plan_drafter(files: Sequence[ModelFile], target: DecoderSpec, lender: Layout, context_size: int) -> Drafter:
    """Describes a drafter whose architecture is one of `DRAFTERS`, and plans its layout.

    Args:
        files: all parts of the drafter, open.
        target: the description of the target model.
        lender: the layout of the target model's weights.
        context_size: length of the longest sequence, in tokens.

    Raises:
        ModelUnsupported: this backend does not support the drafter.
        ModelFileInvalid: the file contradicts itself, or does not fit the target model.
    """
    parts = ModelParts(files)
    spec = describe_drafter(parts, target, context_size)
    return Drafter(spec, plan_layout(spec, parts, lender), parts, _token_ids(parts, spec, target))


def drafter_bytes(
    files: Sequence[ModelFile], target_files: Sequence[ModelFile], kv_type: KVType | None
) -> tuple[int, int]:
    """Bytes of a drafter's packed weights, and bytes of its KV for each token.

    Args:
        files: all parts of the drafter, open.
        target_files: all parts of the target model, open.
        kv_type: as in `NativeOptions`.

    Raises:
        ModelUnsupported: this backend does not support the drafter or the target model.
        ModelFileInvalid: a file contradicts itself, or the drafter does not fit the target model.
        ConfigError: the model cannot have this KV cache type.
    """
    spec, layout, _ = plan_model(target_files, context_size=1)
    drafter = plan_drafter(files, spec, layout, 1)
    return drafter.layout.num_bytes, head_kv_bytes(drafter.spec, spec, kv_type)


def _token_ids(parts: ModelParts, spec: DecoderSpec, target: DecoderSpec) -> NDArray[np.int64] | None:
    entry = parts.tensors.get(TOKEN_IDS)
    num_rows = spec.head.num_rows
    if entry is None:
        return None if num_rows == target.vocab_size else np.arange(target.vocab_size)
    if entry.type.name != "I64" or entry.shape != (num_rows,):
        _fail(parts, f"`{TOKEN_IDS}` of type {entry.type.name} and shape {list(entry.shape)} is no list of tokens")
    found = np.frombuffer(parts.tensor_data(TOKEN_IDS), dtype="<i8").copy()
    if found.min() < 0 or found.max() >= target.vocab_size or len(np.unique(found)) < num_rows:
        _fail(parts, f"`{TOKEN_IDS}` names tokens twice, or such as the model does not have")
    return found


def _fail(parts: ModelParts, what: str) -> NoReturn:
    path = str(parts.first.path)
    raise ModelFileInvalid(f"{path} cannot be used: {what}", path=path)
