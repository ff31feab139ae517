"""Reads what vLLM must be told about a model's folder, and what it does not report. It does not open the weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig, sampling_defaults
from stoker.engine.json_tokenizer import read_tokenizer
from stoker.errors import ModelFileNotFound, ModelUnsupported
from stoker.models.json_folder import JSONFolder
from stoker.models.onnx_description import describe_onnx
from stoker.text.tokenizer_json import JSONTokenizer

_USUAL_CONTEXT = 8192
_WRITERS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
"""Suffixes of the names of architectures that generate text."""
_PARTS_OF_AN_EMBEDDER = "modules.json"
"""File that sentence-transformers writes beside an embedding model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A folder with weights as safetensors, and the JSON files beside them. Sizes are in tokens."""

    path: Path
    name: str
    architecture: str
    trained_context: int
    """Context length that the model was trained on; 0 = unknown."""
    context_size: int
    """Maximum length of a single request."""
    chat_template: str | None
    tokenizer: JSONTokenizer
    defaults: SamplingParams
    """Default sampling parameters: those of the preset, else the model's recommendations, else the configured ones."""
    weights_bytes: int
    pooling: str
    """Pooling of token vectors to one embedding; `vllm` = as the files say; empty = the model generates text."""

    @property
    def can_generate(self) -> bool:
        """Whether the model generates text; otherwise it computes embeddings."""
        return not self.pooling


def read_model_folder(config: EngineConfig) -> ModelFolder:
    """Reads the files in the folder `config.model_path`.

    Args:
        config: the model's configuration.

    Raises:
        ModelError: the folder has no usable `config.json` or `tokenizer.json`, or the model is not supported.
    """
    path = Path(config.model_path).absolute()
    check_folder(path)
    folder = JSONFolder(folders=(path,))
    facts = describe_onnx(folder)
    trained = facts.trained_context or 0
    return ModelFolder(
        path=path,
        name=facts.name,
        architecture=facts.architecture,
        trained_context=trained,
        context_size=config.ctx_size or min(trained or _USUAL_CONTEXT, _USUAL_CONTEXT),
        chat_template=facts.chat_template,
        tokenizer=read_tokenizer(folder, facts),
        defaults=sampling_defaults(config, facts.defaults),
        weights_bytes=sum(file.stat().st_size for file in path.glob("*.safetensors")),
        pooling=_pooling(config, folder),
    )


def _pooling(config: EngineConfig, folder: JSONFolder) -> str:
    """See `ModelFolder.pooling`.

    Raises:
        ModelUnsupported: the model classifies or reranks.
    """
    named = folder.read_json("config.json").get("architectures")
    kinds = [str(name) for name in cast("list[object]", named)] if isinstance(named, list) else []
    if any(kind.endswith("Classification") for kind in kinds):
        message = f"{config.model_path} is a {kinds[0]}: with --runtime vllm, models can generate or embed, not rerank"
        raise ModelUnsupported(message, path=config.model_path)
    is_encoder = bool(kinds) and not any(kind.endswith(_WRITERS) for kind in kinds)
    is_embedder = is_encoder or folder.find(_PARTS_OF_AN_EMBEDDER) is not None
    return config.pooling or ("vllm" if is_embedder else "")


def check_folder(path: Path) -> None:
    """Raises ModelError if the path is not a folder that vLLM can serve; the message says what to do."""
    if path.is_file() or path.suffix.lower() == ".gguf":
        message = f"{path} is one file, and vLLM serves folders of safetensors: leave --runtime vllm out"
        raise ModelUnsupported(message, path=str(path))
    if not path.is_dir():
        message = (
            f"there is no folder {path}: with --runtime vllm a model is the path of a folder, or ORG/REPO of the hub"
        )
        raise ModelFileNotFound(message, path=str(path))
    if not (path / "config.json").is_file():
        message = f"{path} has no config.json: it is not a model folder as Hugging Face's libraries save it"
        raise ModelFileNotFound(message, path=str(path))
