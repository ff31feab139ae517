"""Opens scripted models, which need no weights, for tests of clients: a script determines their tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stoker.backends.scripted import (
    ScriptedBackend,
    ScriptedEmbedder,
    ScriptedTokenizer,
    reply_with,
    scripted_embedding_info,
    scripted_info,
)
from stoker.backends.scripted_answers import PlayedScript, read_script
from stoker.core.embedding import Pooling
from stoker.core.params import SamplingParams
from stoker.core.stages import Mark
from stoker.engine.adapters import Adapters
from stoker.engine.config import EngineConfig, sampling_defaults
from stoker.engine.loaded import Loaded
from stoker.loading.loader import Refusal, no_images, usual_slots
from stoker.loading.locating import SCRIPTED
from stoker.models.lora import LoraFile, content_key, file_version
from stoker.text.chat_formats.table import ALL_MARKER_TOKENS

if TYPE_CHECKING:
    from stoker.models.progress import Progress


_CONTEXT, _SCRIPT_CONTEXT = 512, 32768
"""Default contexts, in tokens, without and with a script: each byte is a token, and prompts with tools are long."""


class ScriptedLoader:
    """Opens a scripted model. Satisfies `Loader`.

    With `config.script`, the model plays the answers of the script. Without, the model `scripted` generates arbitrary
    text, and a model of any other name always answers with its name.
    """

    name = "scripted"

    def __init__(self, config: EngineConfig) -> None:
        self._config = config

    def refusal(self) -> Refusal | None:
        """See `Loader`."""
        return no_images(self._config, "a script")

    def needs(self) -> None:
        """See `Loader`."""

    def open(self, progress: Progress | None, mark: Mark) -> Loaded:
        """See `Loader`."""
        config = self._config
        context_size = config.ctx_size or (_SCRIPT_CONTEXT if config.script else _CONTEXT)
        tokenizer, script = _played(config) if config.script else (ScriptedTokenizer(), None)
        info = scripted_info(
            context_size=context_size,
            kv_tokens=config.kv_tokens or context_size * config.parallel,
            num_slots=usual_slots(config.parallel),
            vocab_size=tokenizer.vocab_size,
            is_batch_invariant=script is None,  # a script does not play drafted tokens at their positions
        )
        next_token = None if script or config.model == SCRIPTED else reply_with(config.model)
        backend = ScriptedBackend(info, next_token=next_token, script=script)
        pooling = Pooling(config.pooling or "mean")
        return Loaded(
            backend=backend,
            kv_port=backend,
            adapters=Adapters(backend, scripted_adapter),
            embedder=ScriptedEmbedder(scripted_embedding_info(pooling=pooling, max_tokens=context_size)),
            backend_name=self.name,
            tokenizer=tokenizer,
            defaults=sampling_defaults(config, SamplingParams()),
            path=Path(config.model_path),
            chat_template=None,
            num_parameters=0,
            size_bytes=0,
        )


def _played(config: EngineConfig) -> tuple[ScriptedTokenizer, PlayedScript]:
    script = read_script(Path(config.script))
    tokenizer = ScriptedTokenizer([*script.special_tokens, *sorted(ALL_MARKER_TOKENS)])
    return tokenizer, PlayedScript(script, tokenizer)


def scripted_adapter(path: Path) -> LoraFile:
    """Any existing file counts as a LoRA adapter of the scripted model."""
    version = file_version(path)
    return LoraFile(path, content_key(path), 1, 0.0, 1, path.stat().st_size, version)
