"""Receives a body that is too large for memory, and writes it to disk piece by piece as it arrives.

The body is `multipart/form-data` with one file, or the file itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from stoker.errors import Cancelled, InvalidInput
from stoker.server.batches.files import FileStore, Upload
from stoker.server.transport.connection import check_uncompressed
from stoker.server.transport.form import MAX_FIELD_BYTES, MAX_PARTS, Form, boundary_of

MAX_FILE_BYTES = 512 << 20
"""Maximum size of a file, as in OpenAI's API."""
MAX_REQUESTS_BYTES = 256 << 20
"""Maximum size of the requests of a batch of Anthropic's clients, as in Anthropic's API."""
_BUFFER_BYTES = 1 << 20
_LEAST_BYTES_PER_S = 64 << 10


async def receive_file(request: Request, files: FileStore, owner: str, timeout_s: float) -> Upload:
    """Writes the file of a form to the store; the caller must keep or drop it.

    Args:
        request: the request, whose body has not been read.
        files: the store to which the file is written.
        owner: owner of the file.
        timeout_s: time that a body of any size gets, in seconds; large ones get more.

    Raises:
        InvalidInput: the body is not a form with one file, or the owner's files exceed the limit.
        HTTPException: 413 if the file is larger than `MAX_FILE_BYTES`, 408 if the body takes too long.
        Cancelled: the client disconnected.
        ResourceExhausted: the file cannot be written to disk.
    """
    boundary = boundary_of(request, "`file` and `purpose`")
    limit = MAX_FILE_BYTES + MAX_PARTS * MAX_FIELD_BYTES
    async with _receiving(request, files, owner, limit, timeout_s) as upload:
        await _parse(request.stream(), boundary, files, upload)
        return upload


async def receive_requests(request: Request, files: FileStore, owner: str, timeout_s: float) -> Upload:
    """Writes a whole body to the store; the caller must keep or drop it.

    Args:
        request: the request, whose body has not been read.
        files: the store to which the body is written.
        owner: owner of the body.
        timeout_s: time that a body of any size gets, in seconds; large ones get more.

    Raises:
        InvalidInput: the owner's files exceed the limit.
        HTTPException: 413 if the body is larger than `MAX_REQUESTS_BYTES`, 408 if it takes too long, 415 if it is
            compressed.
        Cancelled: the client disconnected.
        ResourceExhausted: the body cannot be written to disk.
    """
    check_uncompressed(request)
    buffer = bytearray()
    async with _receiving(request, files, owner, MAX_REQUESTS_BYTES, timeout_s) as upload:
        async for chunk in request.stream():
            buffer += chunk
            if len(buffer) >= _BUFFER_BYTES:
                await _flush(buffer, files, upload, MAX_REQUESTS_BYTES)
        await _flush(buffer, files, upload, MAX_REQUESTS_BYTES)
        return upload


@asynccontextmanager
async def _receiving(
    request: Request, files: FileStore, owner: str, max_bytes: int, timeout_s: float
) -> AsyncGenerator[Upload]:
    """An upload for a body of at most `max_bytes`. It is dropped if the context ends with an error."""
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdecimal() else max_bytes
    if size > max_bytes:
        raise _too_large(max_bytes)
    upload = await files.begin(owner)
    try:
        async with asyncio.timeout(timeout_s + size / _LEAST_BYTES_PER_S):
            yield upload
    except BaseException as error:
        await files.drop(upload)
        if isinstance(error, TimeoutError):
            raise HTTPException(408, "the file took too long") from None
        if isinstance(error, ClientDisconnect):
            raise Cancelled("the client left before its file was complete") from None
        if isinstance(error, MultipartParseError):
            raise InvalidInput(f"the form cannot be read: {error}", parameter="file") from None
        raise


async def _parse(stream: AsyncIterator[bytes], boundary: bytes, files: FileStore, upload: Upload) -> None:
    form = Form()
    parser = MultipartParser(boundary, cast("Any", form.callbacks()))
    async for chunk in stream:
        parser.write(chunk)
        if len(form.data) >= _BUFFER_BYTES:
            await _flush(form.data, files, upload, MAX_FILE_BYTES)
    await _flush(form.data, files, upload, MAX_FILE_BYTES)
    upload.filename, upload.mime_type = form.checked_filename(), form.mime_type
    upload.fields = {name: values[-1] for name, values in form.texts().items()}


async def _flush(buffer: bytearray, files: FileStore, upload: Upload, max_bytes: int) -> None:
    if upload.num_bytes + len(buffer) > max_bytes:
        raise _too_large(max_bytes)
    if buffer:
        await files.write(upload, bytes(buffer))
        buffer.clear()


def _too_large(max_bytes: int) -> HTTPException:
    return HTTPException(413, f"a file has at most {max_bytes >> 20} MiB")
