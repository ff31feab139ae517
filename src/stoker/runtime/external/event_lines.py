"""A parser of server-sent events. It works on bytes, because a chunk may end within a character."""

from __future__ import annotations

from collections.abc import Iterator

MAX_EVENT_BYTES = 64 * 2**20


class TooLong(Exception):
    """An event is larger than `MAX_EVENT_BYTES`."""


class EventLines:
    """Parses one stream of server-sent events, as WHATWG specifies them. Drops comments, event names and ids.

    Old versions of llama-server write `error: {…}`, and new ones `data: {"error": {…}}`; both yield `{"error": {…}}`.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []
        """Pieces of the line that is not complete yet."""
        self._data: list[bytes] = []
        self._num_bytes = 0
        """Bytes of the event that is not complete yet."""

    def push(self, chunk: bytes) -> Iterator[bytes]:
        """The data of every event that this chunk completes.

        Raises:
            TooLong: an event is larger than `MAX_EVENT_BYTES`.
        """
        self._num_bytes += len(chunk)
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line = b"".join((*self._line, end))
            self._line.clear()
            yield from self._take(line.removesuffix(b"\r"))
        if rest:
            self._line.append(rest)
        if ends:
            self._num_bytes = len(rest) + sum(map(len, self._data))
        if self._num_bytes > MAX_EVENT_BYTES:
            raise TooLong(f"an event of more than {MAX_EVENT_BYTES} bytes")

    def flush(self) -> Iterator[bytes]:
        """The data of the last event, which the end of the stream completes."""
        yield from self._take(b"".join(self._line))
        yield from self._take(b"")

    def _take(self, line: bytes) -> Iterator[bytes]:
        if not line:
            if self._data:
                yield b"\n".join(self._data)
                self._data.clear()
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"error":
            self._data.append(b'{"error":' + value + b"}")
