"""In-memory storage for clients of the responses API, bounded by number, bytes and age. Independent of the contents."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

import msgspec

from stoker.server.config import ServerConfig
from stoker.text.messages import Message, TextPart

Key: TypeAlias = tuple[str, str]
"""Owner and id of a stored value."""

_BYTES_PER_MESSAGE = 512


class Kept(Protocol):
    """A value on the shelf: a response or a conversation."""

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory."""
        ...

    @property
    def answers(self) -> frozenset[str]:
        """Ids of the responses whose output the value contains, unless it is such a response itself."""
        ...

    def find(self, item_id: str) -> Message | None:
        """The message of one of the value's items; None if there is no such item."""
        ...


class Shelf:
    """Stores responses and conversations, and evicts the least recently stored first. Belongs to one event loop.

    Args:
        config: `max_stored_responses`, `max_stored_bytes` and `stored_response_s` are used.
        clock: returns a time in seconds; only differences are used.
    """

    def __init__(self, config: ServerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._kept: OrderedDict[Key, tuple[float, int, Kept]] = OrderedDict()
        """Time of storing, size in bytes and value by key, in the order of storing."""
        self._holders: dict[Key, Key] = {}
        """Key of the value that contains the output of a response, by owner and id of the response."""
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def is_off(self) -> bool:
        """Whether the configuration disables storage."""
        return self._config.max_stored_responses == 0

    def has_room(self, value: Kept) -> bool:
        """Whether a value can be stored: whether it is within the limit of bytes."""
        return value.size_bytes <= self._config.max_stored_bytes

    def put(self, key: Key, value: Kept) -> bool:
        """Stores a value under a key, and replaces any other.

        Returns False without a change if the value is larger than the limit of bytes.
        """
        size_bytes = value.size_bytes
        if size_bytes > self._config.max_stored_bytes:
            return False
        self.remove(key)
        self._kept[key] = (self._clock(), size_bytes, value)
        self._num_bytes += size_bytes
        self._holders |= {(key[0], answer): key for answer in value.answers}
        self._evict()
        return True

    def get(self, key: Key) -> Kept | None:
        """The value under a key; None if there is none."""
        self._evict()
        entry = self._kept.get(key)
        return None if entry is None else entry[2]

    def holder_of(self, key: Key) -> Kept | None:
        """The value that contains the output of a response; None if there is none."""
        holder = self._holders.get(key)
        return None if holder is None else self.get(holder)

    def remove(self, key: Key) -> None:
        """Removes the value under a key, if there is one."""
        entry = self._kept.pop(key, None)
        if entry is not None:
            self._num_bytes -= entry[1]
            for answer in entry[2].answers:
                self._holders.pop((key[0], answer), None)

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
    """Approximate size of messages in memory, including images, recordings, tool calls and results."""
    return sum(map(_bytes_of, messages))


def _bytes_of(message: Message) -> int:
    parts = message.content if isinstance(message.content, tuple) else ()
    media = sum(len(part.media.data) for part in parts if not isinstance(part, TextPart))
    text = 2 * (len(message.text) + len(message.reasoning or ""))
    objects = (*message.tool_calls, message.extra) if message.extra else message.tool_calls
    return _BYTES_PER_MESSAGE + text + media + sum(len(msgspec.json.encode(value)) for value in objects)
