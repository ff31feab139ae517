"""No model at all, for tests: a script gives the tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stoker.core.embedding import Pooling
from stoker.core.params import SamplingParams
from stoker.core.stages import Mark
from stoker.engine.adapters import Adapters
from stoker.engine.config import EngineConfig, sampling_defaults
from stoker.engine.loaded import Loaded
from stoker.loading.loader import usual_slots

if TYPE_CHECKING:
    from stoker.models.lora import LoraFile
    from stoker.models.progress import Progress


class ScriptedLoader:
    """The model `scripted` babbles; a model of any other name always answers with its name. Satisfies `Loader`."""

    name = "scripted"

    def __init__(self, config: EngineConfig) -> None:
        self._config = config

    def refusal(self) -> None:
        """See `Loader`."""

    def needs(self) -> None:
        """See `Loader`."""

    def open(self, progress: Progress | None, mark: Mark) -> Loaded:
        """See `Loader`."""
        from stoker.backends.scripted import (
            ScriptedBackend,
            ScriptedEmbedder,
            ScriptedTokenizer,
            reply_with,
            scripted_embedding_info,
            scripted_info,
        )

        config = self._config
        context_size = config.ctx_size or 512
        info = scripted_info(
            context_size=context_size,
            kv_tokens=config.kv_tokens or context_size * config.parallel,
            num_slots=usual_slots(config.parallel),
        )
        next_token = None if config.model == "scripted" else reply_with(config.model)
        backend = ScriptedBackend(info, next_token=next_token)
        pooling = Pooling(config.pooling or "mean")
        return Loaded(
            backend=backend,
            kv_port=backend,
            adapters=Adapters(backend, scripted_adapter),
            embedder=ScriptedEmbedder(scripted_embedding_info(pooling=pooling, max_tokens=context_size)),
            backend_name=self.name,
            tokenizer=ScriptedTokenizer(),
            defaults=sampling_defaults(config, SamplingParams()),
            path=Path(config.model_path),
            chat_template=None,
            num_parameters=0,
            size_bytes=0,
        )


def scripted_adapter(path: Path) -> LoraFile:
    """Any file is an adapter of the scripted model."""
    from stoker.models.lora import LoraFile, content_key, file_version

    version = file_version(path)
    return LoraFile(path, content_key(path), 1, 0.0, 1, path.stat().st_size, version)
