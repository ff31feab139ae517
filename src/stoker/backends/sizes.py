"""The sizes in the options of every backend: a check of their ranges, and the default number of threads."""

from __future__ import annotations

from typing import Protocol

from stoker.backends.cores import usable_cores
from stoker.errors import ConfigError

_MAX_THREADS = 512


class Sizes(Protocol):
    """The fields that the options of all backends have."""

    @property
    def context_size(self) -> int: ...
    @property
    def kv_tokens(self) -> int: ...
    @property
    def num_slots(self) -> int: ...
    @property
    def max_batch_tokens(self) -> int: ...
    @property
    def threads(self) -> int | None: ...


def check_sizes(sizes: Sizes, *further: str) -> None:
    """Checks the ranges of sizes and threads.

    Args:
        sizes: the options of a backend.
        further: names of additional counts in these options.

    Raises:
        ConfigError: a number is out of its range.
    """
    for name in ("context_size", "kv_tokens", "num_slots", "max_batch_tokens", *further):
        if getattr(sizes, name) < 1:
            raise ConfigError(f"`{name}` must be at least 1, not {getattr(sizes, name)}", parameter=name)
    if sizes.threads is not None and not 1 <= sizes.threads <= _MAX_THREADS:
        raise ConfigError(f"`threads` must be between 1 and {_MAX_THREADS}, not {sizes.threads}", parameter="threads")


def num_threads(sizes: Sizes) -> int:
    """The number of threads in the options; by default one for each core that this process may use, at most 512."""
    return sizes.threads or min(usable_cores(), _MAX_THREADS)
