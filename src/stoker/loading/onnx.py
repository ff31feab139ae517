"""ONNX models on ONNX Runtime: checks that their files match, measures their memory needs, and opens them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import numpy as np

from stoker.backends.onnx import (
    OnnxBackend,
    OnnxOptions,
    Signature,
    is_encoder,
    max_logits_bytes,
    read_signature,
    spare_kv_tokens,
)
from stoker.core.stages import Mark
from stoker.engine.config import EngineConfig, sampling_defaults
from stoker.engine.json_tokenizer import read_tokenizer
from stoker.engine.loaded import Loaded
from stoker.errors import ConfigError, ModelFileInvalid, ModelFileNotFound
from stoker.loading.loader import MAX_SLOTS, asked_sizes, names_projector, only_llama, usual_slots
from stoker.loading.onnx_encoder import EncoderParts, read_encoder
from stoker.loading.onnx_placement import placement
from stoker.loading.onnx_sight import Sight, read_sight
from stoker.models.cache import packed_dir
from stoker.models.memory import available_memory
from stoker.models.memory_plan import MemoryNeeds
from stoker.models.onnx_description import OnnxDescription, describe_onnx
from stoker.models.onnx_folder import TABLE, VISION, OnnxFolder, open_onnx_folder
from stoker.models.onnx_graph import OnnxGraph, read_onnx_graph
from stoker.models.onnx_links import follow_links
from stoker.models.onnx_plan import OnnxSizes, onnx_needs
from stoker.models.onnx_products import own_products
from stoker.models.onnx_rows import choose_rows
from stoker.models.progress import Progress
from stoker.text.tokenizer_json import JSONTokenizer

logger = logging.getLogger(__name__)

_USUAL_PADDING = 4096
"""Number of vocabulary ids without a token that padding may explain: more of them cause a warning."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The files of a model, read and checked, before weights are loaded."""

    folder: OnnxFolder
    graph: OnnxGraph
    facts: OnnxDescription
    signature: Signature
    tokenizer: JSONTokenizer
    table: OnnxGraph | None
    """The embedding graph, which turns token ids into rows; None = the main graph takes token ids itself."""
    sight: Sight

    @property
    def graphs(self) -> tuple[OnnxGraph, ...]:
        """The graphs that the engine's process runs; the image encoder has its own process."""
        return (self.graph,) if self.table is None else (self.graph, self.table)

    @property
    def weights_bytes(self) -> int:
        return sum(graph.weights_bytes for graph in self.graphs)


class OnnxLoader:
    """Opens an ONNX folder, or a single graph, on ONNX Runtime. Satisfies `Loader`."""

    name = "onnx"

    def __init__(self, config: EngineConfig) -> None:
        self._config = config

    def refusal(self) -> ConfigError | None:
        """See `Loader`. Reasons: options that apply to GGUF models only."""
        path = self._config.model_path
        if (reason := only_llama(self._config)) is not None:
            return ConfigError(f"{path} is an ONNX model, and {reason}", key="backend")
        if self._config.lora or self._config.adapters:
            return ConfigError(f"{path} is an ONNX model, and adapters (--lora) are for GGUF models", key="lora")
        if names_projector(self._config):
            message = f"--mmproj FILE is for GGUF models; images of {path} are encoded by {VISION}.onnx in its folder"
            return ConfigError(message, key="mmproj")
        return None

    def needs(self) -> MemoryNeeds:
        """See `Loader`."""
        if self._encoder is not None:
            return self._encoder.needs()
        parts = self._parts
        sizes = OnnxSizes(
            model=parts.facts.name,
            trained_context=parts.facts.trained_context,
            weights_bytes=parts.weights_bytes,
            kv_bytes_per_token=parts.signature.kv_bytes_per_token,
            logits_bytes=max_logits_bytes(parts.signature, self._config.ctx_size or parts.facts.trained_context),
        )
        needs = onnx_needs(
            sizes,
            parts.facts.hints,
            **asked_sizes(self._config, parallel=self._max_running),
            spare_kv_tokens=spare_kv_tokens(self._num_slots),
        )
        return replace(needs, compute_bytes=needs.compute_bytes + parts.sight.num_bytes)

    def open(self, progress: Progress | None, mark: Mark) -> Loaded:
        """See `Loader`. `progress` is not used, because ONNX Runtime does not report any."""
        if self._encoder is not None:
            self._encoder.needs().within(available_memory())
            return self._encoder.open(self._config, self.name)
        parts, config = self._parts, self._config
        ends = frozenset(id_ for id_ in parts.tokenizer.eog_token_ids() if id_ < parts.signature.vocab_size)
        options = self._options()
        graph = own_products(parts.graph)
        backend = OnnxBackend(graph, parts.signature, options, table=parts.table, eog_token_ids=ends, mark=mark)
        logger.info("%s is computed by ONNX Runtime (%s)", config.model or parts.graph.path, backend.provider)
        return Loaded(
            backend=backend,
            kv_port=backend,
            rows_port=backend if backend.row_width else None,
            projector=parts.sight.projector,
            image_text=parts.sight.image_text,
            media_refusal=parts.sight.refusal,
            backend_name=self.name,
            devices=() if backend.provider == "cpu" else (backend.provider,),
            tokenizer=parts.tokenizer,
            defaults=sampling_defaults(config, parts.facts.defaults),
            path=parts.graph.path.parent,
            chat_template=parts.facts.chat_template,
            num_parameters=sum(graph.num_parameters for graph in parts.graphs),
            size_bytes=parts.weights_bytes,
            weight_files=tuple(file for graph in parts.graphs for file in graph.weight_files),
            max_running=self._max_running,
        )

    @cached_property
    def _read(self) -> _Parts | EncoderParts:
        return _read(self._config)

    @property
    def _encoder(self) -> EncoderParts | None:
        return self._read if isinstance(self._read, EncoderParts) else None

    @property
    def _parts(self) -> _Parts:
        assert isinstance(self._read, _Parts), "an encoder has no KV"
        return self._read

    @property
    def _max_running(self) -> int:
        return min(self._config.parallel, self._parts.facts.hints.max_sequences or self._config.parallel)

    @property
    def _num_slots(self) -> int:
        return min(MAX_SLOTS, usual_slots(self._max_running))

    def _options(self) -> OnnxOptions:
        parts, config = self._parts, self._config
        plan, placed = self.needs().within(available_memory()), placement(self._config, self._parts.facts)
        return OnnxOptions(
            context_size=plan.ctx_size,
            kv_tokens=plan.kv_tokens,
            num_slots=self._num_slots,
            max_paddings=parts.facts.hints.max_paddings,
            threads=placed.threads,
            provider=placed.provider,
            device_id=placed.device_id,
            spins=not config.has_siblings,
            packed_directory=packed_dir() if config.has_siblings else None,
            operators=_operators(),
            name=parts.facts.name,
            architecture=parts.facts.architecture,
            trained_context=parts.facts.trained_context or 0,
        )


def _operators() -> Path | None:
    """Path of the extension module, which is also a library of ONNX Runtime operators; None = it is not a file."""
    found = find_spec("stoker._native")
    return Path(found.origin) if found is not None and found.origin else None


def _read(config: EngineConfig) -> _Parts | EncoderParts:
    folder = open_onnx_folder(Path(config.model_path), config.onnx_variant)
    plain, facts = read_onnx_graph(folder.graph), describe_onnx(folder)
    if is_encoder(plain):
        return read_encoder(config, folder, follow_links(plain), facts, read_tokenizer(folder, facts))
    graph = follow_links(choose_rows(plain))
    signature = read_signature(
        graph,
        names=facts.names,
        num_kv_heads=facts.num_kv_heads,
        head_size=facts.head_size,
        hidden_size=facts.hidden_size,
    )
    _check_kv_type(config, signature)
    tokenizer = read_tokenizer(folder, facts)
    _check_vocabulary(tokenizer, signature, graph)
    table = _table(folder) if signature.row_width else None
    sight = read_sight(config, folder, signature, tokenizer)
    if sight.refusal and config.mmproj != "off" and folder.beside(VISION) is not None:
        logger.warning("%s takes no images: %s", facts.name, sight.refusal)
    return _Parts(folder, graph, facts, signature, tokenizer, table, sight)


def _table(folder: OnnxFolder) -> OnnxGraph:
    path = folder.beside(TABLE)
    if path is None:
        message = (
            f"{folder.graph} takes `inputs_embeds`, and there is no {TABLE}.onnx beside it, which makes them of tokens"
        )
        raise ModelFileNotFound(message, path=str(folder.graph.parent))
    return follow_links(read_onnx_graph(path))


def _check_kv_type(config: EngineConfig, signature: Signature) -> None:
    own = "f16" if signature.kv_type == np.float16 else "f32"
    if config.kv_type not in (None, own):
        message = f"this ONNX graph keeps keys and values as {own}, not {config.kv_type}; leave --kv-type out"
        raise ConfigError(message, key="kv_type")


def _check_vocabulary(tokenizer: JSONTokenizer, signature: Signature, graph: OnnxGraph) -> None:
    """Checks the tokenizer against the logits. Only added tokens may have ids without logits, because some text
    models share the tokenizer of a vision model; such tokens are refused in prompts.
    """
    if tokenizer.num_words > signature.vocab_size:
        _mismatch(tokenizer, signature, graph)
    if tokenizer.vocab_size + max(_USUAL_PADDING, signature.vocab_size // 10) < signature.vocab_size:
        logger.warning(
            "tokenizer.json has %d tokens and %s has logits for %d: do they belong together?",
            tokenizer.vocab_size,
            graph.path,
            signature.vocab_size,
        )


def _mismatch(tokenizer: JSONTokenizer, signature: Signature, graph: OnnxGraph) -> NoReturn:
    raise ModelFileInvalid(
        f"tokenizer.json has {tokenizer.num_words} tokens, but {graph.path} has logits for {signature.vocab_size}: "
        "they do not belong together",
        path=str(graph.path),
    )
