"""The open files of a GGUF model, and the facts in them that every backend needs. It chooses no backend."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from stoker.backends.base import AdapterPort
from stoker.core.embedding import Pooling
from stoker.core.params import SamplingParams
from stoker.engine.adapters import Adapters
from stoker.engine.config import EngineConfig, adapter_specs, sampling_defaults
from stoker.errors import StokerError
from stoker.loading.encoders import usable_projector
from stoker.loading.loader import MAX_SLOTS, usual_slots
from stoker.loading.preparing import take_prepared
from stoker.models.description import describe, read_pooling
from stoker.models.gguf import GGUFFile, part_paths, read_gguf
from stoker.models.lora import lora_target, read_lora
from stoker.models.model_defaults import model_defaults
from stoker.models.progress import Progress
from stoker.models.projector import Projector, read_projector

if TYPE_CHECKING:
    from stoker.text.vocabulary import VocabularyTokenizer

logger = logging.getLogger(__name__)

_RECURRENT_SPARE_SLOTS = 2
"""Slots of a recurrent model beyond the running ones: few, since each takes memory for a whole state, used or not."""


class GGUFFacts(TypedDict):
    """The fields of `Loaded` that come from the files and do not depend on the backend."""

    defaults: SamplingParams
    path: Path
    chat_template: str | None
    num_parameters: int
    size_bytes: int
    weight_files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class GGUFModel:
    """A model that is being loaded: its open files in order, and its configuration. The creator closes the files."""

    config: EngineConfig
    files: Sequence[GGUFFile]
    facts: GGUFFacts
    prepared: VocabularyTokenizer | None
    """The tokenizer, if it was created in advance (see `preparing`)."""

    @property
    def first(self) -> GGUFFile:
        """The part that has the metadata."""
        return self.files[0]

    @property
    def title(self) -> str:
        """The model's name in log messages."""
        return self.config.model or str(self.first.path)

    @property
    def pooling(self) -> Pooling:
        """The configured pooling, else the model's own, else mean. The pooling of a reranker cannot be changed."""
        own = read_pooling(self.first)
        if self.config.pooling is None or own is Pooling.RANK:
            return own or Pooling.MEAN
        return Pooling(self.config.pooling)

    @property
    def num_slots(self) -> int:
        """Number of slots for running and retained conversations."""
        recurrent_keys = ("ssm.state_size", "wkv.head_size")
        if any(self.first.get_int(self.first.own_key(key)) is not None for key in recurrent_keys):
            return min(MAX_SLOTS, self.config.parallel + _RECURRENT_SPARE_SLOTS)
        return min(MAX_SLOTS, usual_slots(self.config.parallel))

    @property
    def projector(self) -> Projector | None:
        """The projector, which encodes images and recordings for this model; None = text only.

        Raises:
            ModelFileNotFound, ConfigError: see `usable_projector`.
        """
        path = usable_projector(self.config)
        return None if path is None else read_projector(path, max_tokens=self.config.image_max_tokens or 0)

    @property
    def rotates_by_places(self) -> bool:
        """Image rows get rotary positions by their places in the image, not by their order (M-RoPE)."""
        return self.first.get_ints(self.first.own_key("rope.dimension_sections")) is not None

    def adapters(self, port: AdapterPort) -> Adapters:
        """The adapters of this model: none is loaded yet, and later ones must fit the model."""
        target = lora_target(self.files)
        return Adapters(port, lambda path: read_lora(path, target))

    def adapter_bytes(self, size: Callable[[GGUFFile], int]) -> int:
        """The sum of `size` over all configured adapters. Unreadable ones count 0: loading them reports the error."""
        total = 0
        for spec in adapter_specs(self.config):
            with suppress(StokerError, OSError), read_gguf(Path(spec.path)) as file:
                total += size(file)
        return total

    def warn_of_unused_options(self) -> None:
        """Warns of options for ONNX models. They are no error, because a server may have models of both kinds."""
        usual, names = EngineConfig(), ("provider", "device_id", "onnx_variant")
        options = [name for name in names if getattr(self.config, name) != getattr(usual, name)]
        if options:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in options)
            title = self.config.model or self.config.model_path
            logger.warning("%s is a GGUF file, and has no use for %s", title, flags)


def open_gguf(config: EngineConfig, opened: ExitStack) -> GGUFModel:
    """Opens all parts of the file `config.model_path`; `opened` closes them.

    Raises:
        ModelError: a part is missing or damaged.
    """
    path = Path(config.model_path)
    parts = tuple(part_paths(path))
    files = [opened.enter_context(read_gguf(part)) for part in parts]
    description = describe(files[0])
    facts = GGUFFacts(
        defaults=sampling_defaults(config, model_defaults(files[0])),
        path=path,
        chat_template=description.chat_template,
        num_parameters=description.num_parameters,
        size_bytes=description.weights_bytes,
        weight_files=parts,
    )
    return GGUFModel(config, files, facts, take_prepared(files[0].path))


@contextmanager
def part_progress(progress: Progress | None, label: str) -> Generator[Callable[[int, int], None] | None]:
    """Yields a callback for the number of finished bytes and the total number; None if there is no `progress`."""
    if progress is None:
        yield None
        return
    part = _PartProgress(progress, label)
    try:
        yield part
    finally:
        progress.close()


class _PartProgress:
    def __init__(self, progress: Progress, label: str) -> None:
        self._progress = progress
        self._label = label
        self._num_done: int | None = None

    def __call__(self, num_done: int, total: int) -> None:
        if self._num_done is None:
            self._progress.start(total, self._label)
        self._progress.advance(num_done - (self._num_done or 0))
        self._num_done = num_done
