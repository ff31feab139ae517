"""What a GGUF file says about embedding texts with it."""

from __future__ import annotations

from stoker.core.embedding import Pooling
from stoker.models.gguf import GGUFFile

_POOLING = {1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST, 4: Pooling.RANK}
"""llama.cpp's `llama_pooling_type`; 0 means none, which is no embedding of a text."""


def read_pooling(gguf: GGUFFile) -> Pooling | None:
    """How the hidden states become one embedding; None = the model was not made for it, or does not say."""
    return _POOLING.get(gguf.get_int(gguf.own_key("pooling_type")) or 0)
