"""`multipart/form-data` with one file, written to disk as it comes: it is never in memory as a whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from stoker.errors import Cancelled, InvalidInput
from stoker.server.batches.files import FileStore, Upload

MAX_FILE_BYTES = 512 << 20
"""Maximum size of a file, as in OpenAI's API."""
_MAX_FIELD_BYTES = 4096
_MAX_PARTS = 32
_BUFFER_BYTES = 1 << 20
_LEAST_BYTES_PER_S = 64 << 10


class _Form:
    """Collects what the parser finds until it is written."""

    def __init__(self) -> None:
        self.fields: dict[str, bytes] = {}
        self.filename: str | None = None
        self.data = bytearray()
        """Bytes of the file that are not written yet."""
        self.is_complete = False
        self._num_parts = 0
        self._header = [bytearray(), bytearray()]
        self._name = ""
        self._is_file = False

    def callbacks(self) -> dict[str, Any]:
        return {
            "on_part_begin": self._on_part,
            "on_header_field": self._on_header_name,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header,
            "on_headers_finished": self._on_headers,
            "on_part_data": self._on_data,
            "on_end": self._on_end,
        }

    def _on_part(self) -> None:
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise InvalidInput(f"a form has at most {_MAX_PARTS} parts here")
        self._name, self._is_file = "", False

    def _on_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header[0] += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header[1] += data[start:end]

    def _on_header(self) -> None:
        name, value = (bytes(part) for part in self._header)
        self._header = [bytearray(), bytearray()]
        if name.lower() != b"content-disposition":
            return
        _, options = parse_options_header(value)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if b"filename" in options:
            self._is_file = True
            filename = options[b"filename"].decode("utf-8", "replace")
            if self._name != "file" or self.filename is not None:
                raise InvalidInput("a form has one file here, called `file`", parameter=self._name[:100] or "file")
            self.filename = "".join(filter(str.isprintable, filename.replace("%22", '"')))  # as browsers write it

    def _on_headers(self) -> None:
        if not self._is_file:
            self.fields[self._name] = b""

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self.data += data[start:end]
            return
        self.fields[self._name] += data[start:end]
        if len(self.fields[self._name]) > _MAX_FIELD_BYTES:
            raise InvalidInput(
                f"`{self._name[:100]}` has more than {_MAX_FIELD_BYTES} bytes", parameter=self._name[:100]
            )

    def _on_end(self) -> None:
        self.is_complete = True


async def receive_file(request: Request, files: FileStore, owner: str, timeout_s: float) -> Upload:
    """Writes the file of a form; the caller keeps or drops it.

    Args:
        request: whose body was not read.
        files: where the file is written.
        owner: whose file it is.
        timeout_s: for a body of any size; large ones have more time.

    Raises:
        InvalidInput: it is not such a form, or the owner's files are too large.
        HTTPException: 413 if the file is larger than `MAX_FILE_BYTES`, 408 if it takes too long.
        Cancelled: the client left.
        ResourceExhausted: the disk is full.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not boundary:
        raise InvalidInput("send a form (multipart/form-data) with `file` and `purpose`", parameter="file")
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdecimal() else MAX_FILE_BYTES
    if size > MAX_FILE_BYTES + _MAX_PARTS * _MAX_FIELD_BYTES:
        raise _too_large()
    upload = await files.begin(owner)
    try:
        async with asyncio.timeout(timeout_s + size / _LEAST_BYTES_PER_S):
            await _parse(request.stream(), boundary, files, upload)
    except BaseException as error:
        await files.drop(upload)
        if isinstance(error, TimeoutError):
            raise HTTPException(408, "the file took too long") from None
        if isinstance(error, ClientDisconnect):
            raise Cancelled("the client left before its file was complete") from None
        if isinstance(error, MultipartParseError):
            raise InvalidInput(f"the form cannot be read: {error}", parameter="file") from None
        raise
    return upload


async def _parse(stream: AsyncIterator[bytes], boundary: bytes, files: FileStore, upload: Upload) -> None:
    form = _Form()
    parser = MultipartParser(boundary, cast("Any", form.callbacks()))
    async for chunk in stream:
        parser.write(chunk)
        if len(form.data) >= _BUFFER_BYTES:
            await _flush(form, files, upload)
    await _flush(form, files, upload)
    if not form.is_complete:
        raise InvalidInput("the form breaks off", parameter="file")
    if form.filename is None:
        raise InvalidInput("the form has no file called `file`", parameter="file")
    upload.filename = form.filename
    upload.fields = {name: value.decode("utf-8", "replace") for name, value in form.fields.items()}


async def _flush(form: _Form, files: FileStore, upload: Upload) -> None:
    if upload.num_bytes + len(form.data) > MAX_FILE_BYTES:
        raise _too_large()
    if form.data:
        await files.write(upload, bytes(form.data))
        form.data.clear()


def _too_large() -> HTTPException:
    return HTTPException(413, f"a file has at most {MAX_FILE_BYTES >> 20} MiB")
