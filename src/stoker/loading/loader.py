"""The interface of loaders, one per backend, and what they share. `choosing` chooses between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias, TypedDict

from stoker.core.stages import Mark
from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError, ModelUnsupported

if TYPE_CHECKING:
    from stoker.engine.loaded import Loaded
    from stoker.models.memory_plan import MemoryNeeds
    from stoker.models.progress import Progress

MAX_SLOTS = 256
"""Maximum number of slots of a model."""
_MIN_SLOTS, _SLOTS_PER_RUNNING = 16, 4
"""Minimum number of slots, and slots per running request: slots without a request retain conversations for reuse."""


Refusal: TypeAlias = ModelUnsupported | ConfigError
"""Why a backend does not compute a model."""


class Loader(Protocol):
    """Opens one model on one backend. Creating a loader reads no weights."""

    @property
    def name(self) -> str:
        """The backend's name, as `--backend` takes it."""
        ...

    def refusal(self) -> Refusal | None:
        """Why this backend does not compute this model as configured; None = it does.

        Raises:
            ModelError: a file of the model is missing or damaged.
        """
        ...

    def needs(self) -> MemoryNeeds | None:
        """The memory that the model takes on this backend, without loading it. None = it need not be counted.

        Raises:
            ModelError: a file of the model is missing or damaged.
            ConfigError: the model cannot have a configured size.
        """
        ...

    def open(self, progress: Progress | None, mark: Mark) -> Loaded:
        """Loads the model. Call it only if `refusal` returns None.

        Args:
            progress: receives the number of bytes that are loaded or packed.
            mark: called at the end of each part of a step.

        Raises:
            ModelError: a file is missing, damaged, or the backend's library does not run it.
            ResourceExhausted: the model does not fit into memory.
            ConfigError: the model cannot have a configured size or option.
        """
        ...


class AskedSizes(TypedDict):
    """The configured sizes on which a memory plan depends; see `memory_needs`."""

    ctx_size: int | None
    kv_tokens: int | None
    parallel: int
    num_replicas: int


def asked_sizes(config: EngineConfig, *, parallel: int | None = None) -> AskedSizes:
    """The sizes that `config` asks for; `parallel` replaces the configured one where the model has a limit."""
    return AskedSizes(
        ctx_size=config.ctx_size,
        kv_tokens=config.kv_tokens,
        parallel=config.parallel if parallel is None else parallel,
        num_replicas=config.num_replicas,
    )


def usual_slots(max_running: int) -> int:
    """Number of slots for running and retained conversations, if `max_running` requests run at the same time."""
    return max(_MIN_SLOTS, _SLOTS_PER_RUNNING * max_running)


def names_projector(config: EngineConfig) -> bool:
    """Whether a projector is configured explicitly, and not just found beside the model (`auto`)."""
    return config.mmproj not in ("auto", "off")


def no_images(config: EngineConfig, name: str) -> ConfigError | None:
    """The error of a text-only backend if a projector is configured explicitly; None = none is."""
    if not names_projector(config):
        return None
    others = "the native executor, libllama and --runtime llama-server do"
    message = f"--mmproj: {name} does not support images or audio; {others}"
    return ConfigError(message, key="mmproj")


def only_llama(config: EngineConfig) -> str | None:
    """Message about the first option in `config` that only libllama supports; None = there is none."""
    if config.control_vector:
        return "control vectors are applied by libllama only"
    types = [f"--cache-type-{part}" for part in "kv" if getattr(config, f"cache_type_{part}") is not None]
    if types:
        return f"{types[0]} is an option of libllama; other backends have --kv-type"
    options = ("flash_attn", "gpu_layers", "split_mode", "main_gpu", "n_cpu_moe")
    named = [name for name in options if getattr(config, name) not in (None, "auto")]
    named += [name for name in ("tensor_split", "override_tensor") if getattr(config, name)]
    return f"--{named[0].replace('_', '-')} is an option of libllama" if named else None
