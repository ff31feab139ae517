"""What a GGUF file says about itself, for model cards and lists. Sizes are counted from its tensors, not believed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from stoker.core.embedding import Pooling
from stoker.models.gguf import GGUFFile, TensorInfo, part_paths, read_gguf
from stoker.models.gguf_types import FILE_TYPE_NAMES

_CHAT_TEMPLATE = "tokenizer.chat_template"
_POOLING = {1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST, 4: Pooling.RANK}
"""llama.cpp's `llama_pooling_type`; 0 means none, which is no embedding of a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """The facts of one model; of a split one, of all its parts together."""

    name: str
    architecture: str
    quantization: str
    """Such as `Q4_K_M`; `unknown` if there are no tensors."""
    num_parameters: int
    weights_bytes: int
    trained_context: int
    """In tokens."""
    vocab_size: int
    """0 if the file has no vocabulary."""
    chat_template: str | None


def describe(gguf: GGUFFile) -> ModelDescription:
    """Reads the facts from the (first) file of a model.

    Raises:
        ModelFileInvalid: the file lacks what every language model has, or another part is damaged.
        ModelFileNotFound: another part is missing.
    """
    tensors = all_tensors(gguf)
    return ModelDescription(
        name=gguf.get_str("general.name") or gguf.path.stem,
        architecture=gguf.architecture,
        quantization=_quantization(gguf, tensors),
        num_parameters=sum(tensor.num_elements for tensor in tensors),
        weights_bytes=sum(tensor.num_bytes for tensor in tensors),
        trained_context=gguf.require_int(gguf.own_key("context_length")),
        vocab_size=vocab_size(gguf),
        chat_template=_chat_template(gguf),
    )


def _chat_template(gguf: GGUFFile) -> str | None:
    """An empty one is none: it would leave out whatever is said."""
    template = gguf.get_str(_CHAT_TEMPLATE)
    return template if template and template.strip() else None


def all_tensors(gguf: GGUFFile) -> list[TensorInfo]:
    """The tensors of all parts of a model. Offsets count from the beginning of each one's own file."""
    tensors = list(gguf.tensors.values())
    for path in part_paths(gguf.path):
        if path != gguf.path:
            with read_gguf(path) as part:
                tensors += part.tensors.values()
    return tensors


def vocab_size(gguf: GGUFFile) -> int:
    """How many tokens the vocabulary has; 0 if the file has none."""
    tokens = gguf.get_array("tokenizer.ggml.tokens")
    return len(tokens) if tokens else gguf.get_int(gguf.own_key("vocab_size")) or 0


def _quantization(gguf: GGUFFile, tensors: list[TensorInfo]) -> str:
    """The name of the file as a whole, or else of the type that takes most of its bytes."""
    named = FILE_TYPE_NAMES.get(gguf.get_int("general.file_type") or 0)
    if named and gguf.get_int("general.file_type") is not None:
        return named
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.type.name] += tensor.num_bytes
    return sizes.most_common(1)[0][0] if sizes else "unknown"


def read_pooling(gguf: GGUFFile) -> Pooling | None:
    """How the hidden states become one embedding; None = the model was not made for it, or does not say."""
    return _POOLING.get(gguf.get_int(gguf.own_key("pooling_type")) or 0)
