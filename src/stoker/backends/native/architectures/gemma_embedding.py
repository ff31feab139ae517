"""gemma-embedding: EmbeddingGemma. A Gemma 3 with bidirectional attention, also in its windows."""

from __future__ import annotations

from stoker.backends.native.architectures import gemma3
from stoker.backends.native.hyperparameters import Hyperparameters
from stoker.backends.native.spec import DecoderSpec


def describe(model: Hyperparameters) -> DecoderSpec:
    """See `describe_decoder`."""
    return gemma3.describe(model, sees_ahead=True)
