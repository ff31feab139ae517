"""Parses an HTTP/1.1 reply as it arrives, down to the payloads of its server-sent events. It opens no socket.

It supports what a load generator needs: one reply per connection, whose body is chunked, has a known length, or ends
with the connection.
"""

from __future__ import annotations

_MAX_HEAD_BYTES = 64 * 1024
_MAX_BODY_BYTES = 64 * 1024
"""Maximum number of bytes that are kept of a reply that is not an event stream: enough for an error message."""


class MalformedReply(ValueError):
    """The received bytes are not HTTP that this parser understands, or not a chunk of the API."""


class ReplyParser:
    """Parses one reply: `push` takes bytes and returns the payloads of `data:` lines as soon as they are complete.

    Attributes:
        status: HTTP status; 0 until the head is complete.
        body: the beginning of the body if it is not an event stream, else empty.
        is_stream: whether the body is an event stream.
        is_whole: whether the body has ended as HTTP says it should.
    """

    def __init__(self) -> None:
        self.status = 0
        self.body = bytearray()
        self.is_stream = False
        self.is_whole = False
        self._raw = bytearray()
        """Received bytes that are not parsed yet."""
        self._line = bytearray()
        """The incomplete last line of the event stream."""
        self._is_chunked = False
        self._left: int | None = None
        """Bytes left in the chunk or body; None = until the connection ends, or the size of a chunk comes next."""

    @property
    def has_head(self) -> bool:
        return self.status != 0

    def push(self, received: bytes) -> list[bytes]:
        """Takes received bytes, split anywhere, and returns the payloads that are now complete.

        Raises:
            MalformedReply: the bytes are not HTTP, or their framing is broken.
        """
        self._raw += received
        payloads: list[bytes] = []
        if not self.has_head and not self._read_head():
            return payloads
        while (part := self._next_part()) is not None:
            payloads += self._lines(part)
        return payloads

    def end(self) -> None:
        """Must be called when the connection has ended: a body without a length ends with it."""
        if self.has_head and not self._is_chunked and self._left is None:
            self.is_whole = True

    def _read_head(self) -> bool:
        head, separator, rest = self._raw.partition(b"\r\n\r\n")
        if not separator:
            if len(self._raw) > _MAX_HEAD_BYTES:
                raise MalformedReply("the reply has no end of its head")
            return False
        first, *lines = bytes(head).split(b"\r\n")
        headers = {name.strip().lower(): value.strip().lower() for name, _, value in (x.partition(b":") for x in lines)}
        self.status = _status(first)
        self._is_chunked = headers.get(b"transfer-encoding") == b"chunked"
        self.is_stream = self.status == 200 and headers.get(b"content-type", b"").startswith(b"text/event-stream")
        if not self._is_chunked and b"content-length" in headers:
            self._left = _number(headers[b"content-length"], 10)
            self.is_whole = self._left == 0
        self._raw = rest
        return True

    def _next_part(self) -> bytes | None:
        """The next bytes of the body, without the framing; None if more bytes must arrive first, or none follow."""
        if self.is_whole or (self._is_chunked and not self._left and not self._read_chunk_size()) or not self._raw:
            return None
        size = len(self._raw) if self._left is None else min(self._left, len(self._raw))
        part = bytes(self._raw[:size])
        del self._raw[:size]
        if self._left is not None:
            self._left -= size
            self.is_whole = self._left == 0 and not self._is_chunked
        return part

    def _read_chunk_size(self) -> bool:
        while (end := self._raw.find(b"\r\n")) >= 0:
            line = bytes(self._raw[:end])
            del self._raw[: end + 2]
            if not line and self._left == 0:
                self._left = None  # the line end after the last chunk
                continue
            self._left = _number(line.partition(b";")[0], 16)
            self.is_whole = self._left == 0
            return not self.is_whole
        return False

    def _lines(self, part: bytes) -> list[bytes]:
        if not self.is_stream:
            self.body += part[: _MAX_BODY_BYTES - len(self.body)]
            return []
        *lines, rest = (bytes(self._line) + part).split(b"\n")
        self._line = bytearray(rest)
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


def _status(line: bytes) -> int:
    version, _, rest = line.partition(b" ")
    if not version.startswith(b"HTTP/1."):
        raise MalformedReply(f"this is not HTTP/1: {line[:40]!r}")
    return _number(rest[:3], 10)


def _number(digits: bytes, base: int) -> int:
    try:
        return int(digits, base)
    except ValueError:
        raise MalformedReply(f"not a number where HTTP needs one: {digits[:40]!r}") from None
