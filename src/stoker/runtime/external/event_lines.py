"""Takes the bytes of an event stream apart. On bytes, so that a character may be split between two chunks."""

from __future__ import annotations

from collections.abc import Iterator

MAX_EVENT_BYTES = 64 * 2**20


class TooLong(Exception):
    """An event without an end."""


class EventLines:
    """The events of one stream, see the WHATWG's server-sent events. Comments, names and ids are dropped.

    Older llama-servers write `error: {…}` where newer ones write `data: {"error": {…}}`: both come out as the latter.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []
        """The pieces of the line that has not ended yet."""
        self._data: list[bytes] = []
        self._num_bytes = 0
        """Of the event that has not ended yet."""

    def push(self, chunk: bytes) -> Iterator[bytes]:
        """The data of every event that ends in this chunk.

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
        """The data of an event that the end of the stream has ended."""
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
