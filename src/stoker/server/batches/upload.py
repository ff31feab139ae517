"""Receives a `multipart/form-data` body with one file, and writes it to disk piece by piece as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from stoker.errors import Cancelled, InvalidInput
from stoker.server.batches.files import FileStore, Upload
from stoker.server.transport.form import MAX_FIELD_BYTES, MAX_PARTS, Form, boundary_of

MAX_FILE_BYTES = 512 << 20
"""Maximum size of a file, as in OpenAI's API."""
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
    declared = request.headers.get("content-length", "")
    size = int(declared) if declared.isdecimal() else MAX_FILE_BYTES
    if size > MAX_FILE_BYTES + MAX_PARTS * MAX_FIELD_BYTES:
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
    form = Form()
    parser = MultipartParser(boundary, cast("Any", form.callbacks()))
    async for chunk in stream:
        parser.write(chunk)
        if len(form.data) >= _BUFFER_BYTES:
            await _flush(form, files, upload)
    await _flush(form, files, upload)
    upload.filename, upload.mime_type = form.checked_filename(), form.mime_type
    upload.fields = {name: values[-1] for name, values in form.texts().items()}


async def _flush(form: Form, files: FileStore, upload: Upload) -> None:
    if upload.num_bytes + len(form.data) > MAX_FILE_BYTES:
        raise _too_large()
    if form.data:
        await files.write(upload, bytes(form.data))
        form.data.clear()


def _too_large() -> HTTPException:
    return HTTPException(413, f"a file has at most {MAX_FILE_BYTES >> 20} MiB")
