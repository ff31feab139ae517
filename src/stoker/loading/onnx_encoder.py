"""Text encoders in ONNX folders, such as those of sentence-transformers: their memory needs, and how to open them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stoker.backends.onnx import EncoderSignature, OnnxEncoder, OnnxEncoderOptions, read_encoder_signature
from stoker.core.embedding import Pooling
from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig
from stoker.engine.loaded import Loaded
from stoker.loading.onnx_placement import placement
from stoker.models.memory_plan import MemoryNeeds
from stoker.models.onnx_description import OnnxDescription
from stoker.models.onnx_folder import OnnxFolder
from stoker.models.onnx_graph import OnnxGraph
from stoker.models.onnx_plan import encoder_needs
from stoker.text.tokenizer_json import JSONTokenizer

_POOLING_FILE = "1_Pooling/config.json"
_POOLING_MODES = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_lasttoken": Pooling.LAST,
    "pooling_mode_mean_tokens": Pooling.MEAN,
}
_NO_LIMIT = 1 << 30
"""Lengths from this on mean that the length is unknown: some files have such a placeholder."""


@dataclass(frozen=True, slots=True)
class EncoderParts:
    """The files of a text encoder, read and checked, before weights are loaded."""

    folder: OnnxFolder
    graph: OnnxGraph
    facts: OnnxDescription
    signature: EncoderSignature
    tokenizer: JSONTokenizer
    pooling: Pooling
    max_tokens: int

    def needs(self) -> MemoryNeeds:
        """The memory that the encoder takes."""
        return encoder_needs(self.facts.name, self.graph.weights_bytes, self.max_tokens)

    def open(self, config: EngineConfig, backend_name: str) -> Loaded:
        """Loads the encoder.

        Raises:
            ModelError, ResourceExhausted, ConfigError: see `Loader.open`.
        """
        around, placed = self.tokenizer.around(), placement(config, self.facts)
        options = OnnxEncoderOptions(
            max_tokens=self.max_tokens,
            pooling=self.pooling,
            vocab_size=self.tokenizer.vocab_size,
            suffix=around.behind,
            separator=around.between if self.pooling is Pooling.RANK else (),
            threads=placed.threads,
            provider=placed.provider,
            device_id=placed.device_id,
            name=self.facts.name,
            architecture=self.facts.architecture,
        )
        backend = OnnxEncoder(self.graph, self.signature, options)
        return Loaded(
            backend=backend,
            embedder=backend,
            backend_name=backend_name,
            tokenizer=self.tokenizer,
            defaults=SamplingParams(),
            path=self.graph.path.parent,
            chat_template=None,
            num_parameters=self.graph.num_parameters,
            size_bytes=self.graph.weights_bytes,
            weight_files=self.graph.weight_files,
        )


def read_encoder(
    config: EngineConfig, folder: OnnxFolder, graph: OnnxGraph, facts: OnnxDescription, tokenizer: JSONTokenizer
) -> EncoderParts:
    """Reads the inputs of an encoder's graph, and its pooling and maximum length (in tokens) from the files beside it.

    Raises:
        ModelUnsupported: an input or the output of the graph is not supported.
    """
    signature = read_encoder_signature(
        graph,
        size=facts.hidden_size,
        num_kv_heads=facts.num_kv_heads,
        head_size=facts.head_size,
        takes_states=config.pooling is not None,
    )
    own = next((mode for key, mode in _POOLING_MODES.items() if _says(folder, key)), Pooling.MEAN)
    pooling = Pooling(config.pooling) if config.pooling and signature.gives == "states" else own
    limits = (facts.trained_context, _limit(folder), config.ctx_size)
    max_tokens = min((limit for limit in limits if limit), default=512)
    if signature.gives == "score":
        pooling = Pooling.RANK
    return EncoderParts(folder, graph, facts, signature, tokenizer, pooling, max_tokens)


def _says(folder: OnnxFolder, key: str) -> bool:
    return folder.read_json(_POOLING_FILE).get(key) is True


def _limit(folder: OnnxFolder) -> int | None:
    """The tokenizer's maximum length: the only correct limit of models whose positions do not begin at 0."""
    found: Any = folder.read_json("tokenizer_config.json").get("model_max_length")
    return found if isinstance(found, int) and 0 < found < _NO_LIMIT else None
