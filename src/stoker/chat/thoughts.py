"""Remembers the reasoning before tool calls, for clients that omit it when they send the tools' results.

Without the reasoning, the next prompt would differ there from the cached one, and the prefix cache would end there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

from stoker.text.messages import Message

_BYTES_PER_THOUGHT: Final = 512


class ThoughtMemory:
    """Reasoning texts by owner and id of the tool call that followed. The oldest are evicted first. Thread-safe.

    Args:
        max_bytes: maximum total size; 0 = nothing is remembered.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._known: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._lock = Lock()

    def keep(self, owner: str, call_id: str, thought: str) -> None:
        """Remembers the reasoning before a call."""
        size = _size(thought)
        if size > self._max_bytes:
            return
        with self._lock:
            self._num_bytes += size - _size(self._known.pop((owner, call_id), None))
            self._known[owner, call_id] = thought
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= _size(self._known.popitem(last=False)[1])

    def find(self, owner: str, call_id: str) -> str | None:
        """The reasoning before a call; None = it is not known, or was evicted."""
        with self._lock:
            return self._known.get((owner, call_id))


@dataclass(frozen=True, slots=True)
class Thoughts:
    """The view of a `ThoughtMemory` for one owner: the reasoning of other owners cannot be read through it."""

    memory: ThoughtMemory
    owner: str = ""

    def keep(self, call_id: str, thought: str) -> None:
        """Remembers the reasoning before a call."""
        self.memory.keep(self.owner, call_id, thought)

    def filled_in(self, messages: Sequence[Message]) -> list[Message]:
        """The messages, with remembered reasoning added to messages with tool calls but no reasoning."""
        return [self._filled_in(message) for message in messages]

    def _filled_in(self, message: Message) -> Message:
        if message.reasoning or not message.tool_calls:
            return message
        ids = [call_id for call in message.tool_calls if isinstance(call_id := call.get("id"), str)]
        found = [thought for call_id in ids if (thought := self.memory.find(self.owner, call_id))]
        return replace(message, reasoning="\n".join(found)) if found else message


NO_THOUGHTS: Final = Thoughts(ThoughtMemory(0))


def _size(thought: str | None) -> int:
    return 0 if thought is None else _BYTES_PER_THOUGHT + 4 * len(thought)
