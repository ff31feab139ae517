"""What is kept for clients of the responses API: bounded by number, bytes and age. In memory only; knows no kinds."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

import msgspec

from stoker.server.config import ServerConfig
from stoker.text.messages import Message, TextPart

Key: TypeAlias = tuple[str, str]
"""The owner and the id of what is kept."""

_BYTES_PER_MESSAGE = 512


class Sized(Protocol):
    @property
    def size_bytes(self) -> int:
        """Roughly."""
        ...


class Shelf:
    """Keeps responses and conversations; what was put there first leaves first. Belongs to one event loop.

    Args:
        config: `max_stored_responses`, `max_stored_bytes` and `stored_response_s` are used.
        clock: seconds; only differences count.
    """

    def __init__(self, config: ServerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._kept: OrderedDict[Key, tuple[float, int, Sized]] = OrderedDict()
        """In the order in which they were put here, with the time at which they were and their size."""
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def is_off(self) -> bool:
        """Nothing is ever kept here."""
        return self._config.max_stored_responses == 0

    def put(self, key: Key, value: Sized) -> None:
        """Keeps a value, in place of one of the same key; one that is larger than all may be together is not kept."""
        self.remove(key)
        size_bytes = value.size_bytes
        self._kept[key] = (self._clock(), size_bytes, value)
        self._num_bytes += size_bytes
        self._evict()

    def get(self, key: Key) -> Sized | None:
        """What is kept under a key."""
        self._evict()
        entry = self._kept.get(key)
        return None if entry is None else entry[2]

    def remove(self, key: Key) -> None:
        """Forgets what is kept under a key, if anything is."""
        entry = self._kept.pop(key, None)
        if entry is not None:
            self._num_bytes -= entry[1]

    def _evict(self) -> None:
        oldest_s = self._clock() - self._config.stored_response_s
        while self._kept:
            key, (put_s, _, _) = next(iter(self._kept.items()))
            is_too_much = (
                len(self._kept) > self._config.max_stored_responses or self._num_bytes > self._config.max_stored_bytes
            )
            if not is_too_much and put_s > oldest_s:
                return
            self.remove(key)


def bytes_of(messages: Iterable[Message]) -> int:
    """Roughly the memory that messages take, with their images, recordings and calls."""
    return sum(map(_bytes_of, messages))


def _bytes_of(message: Message) -> int:
    parts = message.content if isinstance(message.content, tuple) else ()
    media = sum(len(part.media.data) for part in parts if not isinstance(part, TextPart))
    text = 2 * (len(message.text) + len(message.reasoning or ""))
    return _BYTES_PER_MESSAGE + text + media + sum(len(msgspec.json.encode(call)) for call in message.tool_calls)
