"""The endpoints of files, and of OpenAI's batches. The handlers only call other modules, in order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar, get_args

from starlette.responses import FileResponse, Response

from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.server.api import Call, Router
from stoker.server.batches.anthropic_files import (
    ANTHROPIC_PURPOSE,
    DeletedAnthropicFile,
    anthropic_file,
    anthropic_list,
)
from stoker.server.batches.batches import Batches
from stoker.server.batches.files import Upload, owner_tag
from stoker.server.batches.lines import URLS, full_url
from stoker.server.batches.records import BatchRecord, FileRecord
from stoker.server.batches.types import (
    BATCH_FIELDS,
    Batch,
    BatchList,
    BatchRequest,
    DeletedFile,
    File,
    FileForm,
    FileList,
    Purpose,
    batch_of,
    file_of,
)
from stoker.server.batches.upload import receive_file
from stoker.server.error_shapes import is_anthropic
from stoker.server.errors import json_response
from stoker.server.fields import page_limit
from stoker.server.observe.account import account_of

router = Router(api="OpenAI")

ListedT = TypeVar("ListedT", FileRecord, BatchRecord)

_PURPOSES = get_args(Purpose)
_LIVES_S = {"expires_after[seconds]": (3600, 2_592_000), "expires_in_seconds": (3600, 7_776_000)}
"""Limits of the time for which a file is stored, in seconds, by the field of the form: OpenAI's and Anthropic's."""
_MAX_FILES_PAGE = 10_000
_MAX_BATCHES_PAGE = 100
_AFTER = ("after", "after_id")
"""Names of the query's field for the id that precedes a page: OpenAI's and Anthropic's."""
_CURSOR = re.compile(r"(?P<created_at>[0-9]{1,15})_(?P<id>.+)")
"""`next_page` of `anthropic_list`."""
_MAX_METADATA = 16
_MAX_METADATA_CHARS = (64, 512)


@router.endpoint(
    "POST",
    "/v1/files",
    "Stores a file: the input of a batch, or a document or an image that messages name by its id.",
    aliases=("/files",),
    form=FileForm,
    reply=File,
)
async def create_file(call: Call[None]) -> Response:
    files = batches_of(call).files
    upload = await receive_file(call.request, files, owner_of_call(call), call.config.body_timeout_s)
    try:
        record = await files.keep(upload, upload.filename, _purpose(call, upload), lives_s=_lives_s(upload))
    finally:
        await files.drop(upload)
    return _shown(call, record)


@router.endpoint(
    "GET",
    "/v1/files",
    "Lists the files that are stored for this API key.",
    aliases=("/files",),
    query={"limit": int, **dict.fromkeys(("purpose", "order", "after", "after_id", "before_id", "page", "ids"), str)},
    reply=FileList,
)
async def list_files(call: Call[None]) -> Response:
    purpose = call.query.get("purpose")
    records = await batches_of(call).files.all_of(owner_of_call(call))
    found = [record for record in records if purpose in (None, record.purpose)]
    if named := {file_id for name in ("ids", "ids[]") for file_id in call.query.getlist(name)}:
        found = [record for record in found if record.id in named]
    page, has_more = _page(call, found, _MAX_FILES_PAGE, _MAX_FILES_PAGE)
    if is_anthropic(call.request.scope):
        return json_response(anthropic_list(page, has_more=has_more))
    data = [file_of(record) for record in page]
    return json_response(FileList(data=data, first_id=_id(page, 0), last_id=_id(page, -1), has_more=has_more))


@router.endpoint(
    "GET", "/v1/files/{file_id}", "Shows a stored file, without its bytes.", aliases=("/files/{file_id}",), reply=File
)
async def get_file(call: Call[None]) -> Response:
    return _shown(call, await _file(call))


@router.endpoint(
    "GET", "/v1/files/{file_id}/content", "Downloads a stored file.", aliases=("/files/{file_id}/content",)
)
async def get_content(call: Call[None]) -> Response:
    record = await _file(call)
    return FileResponse(batches_of(call).files.path(record), media_type="application/octet-stream")


@router.endpoint(
    "DELETE",
    "/v1/files/{file_id}",
    "Deletes a stored file that no unfinished batch needs.",
    aliases=("/files/{file_id}",),
    reply=DeletedFile,
)
async def delete_file(call: Call[None]) -> Response:
    batches, record = batches_of(call), await _file(call)
    reader = batches.reads(owner_of_call(call), record.id)
    if reader is not None:
        raise InvalidInput(f"the batch {reader.id} still reads this file; cancel it first", parameter="file_id")
    await batches.files.delete(record)
    deleted = DeletedAnthropicFile if is_anthropic(call.request.scope) else DeletedFile
    return json_response(deleted(id=record.id))


@router.endpoint(
    "POST",
    "/v1/batches",
    "Computes the requests in a stored file, after all requests whose clients wait for the reply.",
    aliases=("/batches",),
    body=BatchRequest,
    fields=BATCH_FIELDS,
    reply=Batch,
)
async def create_batch(call: Call[BatchRequest]) -> Response:
    batches, wire = batches_of(call), call.body
    endpoint = full_url(wire.endpoint)
    if endpoint not in URLS:
        raise InvalidInput(f"`endpoint` must be one of {', '.join(URLS)}", parameter="endpoint")
    if wire.completion_window != "24h":
        raise InvalidInput('`completion_window` must be "24h"', parameter="completion_window")
    _check_metadata(wire.metadata or {})
    key_name = account_of(call.request.scope).key_name
    batch = await batches.create(owner_of_call(call), key_name, endpoint, wire.input_file_id, wire.metadata)
    return json_response(batch_of(batch))


@router.endpoint(
    "GET",
    "/v1/batches",
    "Lists the batches of this API key, the newest first.",
    aliases=("/batches",),
    query={"limit": int, "after": str},
    reply=BatchList,
)
async def list_batches(call: Call[None]) -> Response:
    page, has_more = _page(call, batches_of(call).all_of(owner_of_call(call)), 20, _MAX_BATCHES_PAGE)
    data = [batch_of(record) for record in page]
    return json_response(BatchList(data=data, first_id=_id(page, 0), last_id=_id(page, -1), has_more=has_more))


@router.endpoint(
    "GET", "/v1/batches/{batch_id}", "Shows the progress of a batch.", aliases=("/batches/{batch_id}",), reply=Batch
)
async def get_batch(call: Call[None]) -> Response:
    return json_response(batch_of(batches_of(call).get(owner_of_call(call), call.path_parameter("batch_id"))))


@router.endpoint(
    "POST",
    "/v1/batches/{batch_id}/cancel",
    "Cancels a batch; finished answers are kept.",
    aliases=("/batches/{batch_id}/cancel",),
    reply=Batch,
)
async def cancel_batch(call: Call[None]) -> Response:
    return json_response(batch_of(await batches_of(call).cancel(owner_of_call(call), call.path_parameter("batch_id"))))


def batches_of(call: Call[Any]) -> Batches:
    """The batches of the server.

    Raises:
        UnsupportedParameter: the server has no folder for them.
    """
    return call.server.part(Batches, _refuse)


def _refuse() -> NoReturn:
    raise UnsupportedParameter("this server stores no files: start it with --files-dir FOLDER (or auto)")


def owner_of_call(call: Call[Any]) -> str:
    """Owner of the files and batches of a client."""
    return owner_tag(call.owner)


async def _file(call: Call[None]) -> FileRecord:
    return await batches_of(call).files.get(owner_of_call(call), call.path_parameter("file_id"))


def _shown(call: Call[None], record: FileRecord) -> Response:
    return json_response(anthropic_file(record) if is_anthropic(call.request.scope) else file_of(record))


def _purpose(call: Call[None], upload: Upload) -> str:
    purpose = upload.fields.get("purpose", ANTHROPIC_PURPOSE if is_anthropic(call.request.scope) else None)
    if purpose is None or purpose not in _PURPOSES:
        said = "is missing" if purpose is None else f"is {purpose[:40]!r}"
        raise InvalidInput(f"`purpose` {said}: it must be one of {', '.join(_PURPOSES)}", parameter="purpose")
    return purpose


def _lives_s(upload: Upload) -> int | None:
    anchor = upload.fields.get("expires_after[anchor]")
    name = next((name for name in _LIVES_S if name in upload.fields), None)
    if name is None and anchor is None:
        return None
    name = name or "expires_after[seconds]"
    seconds, (least, most) = upload.fields.get(name, ""), _LIVES_S[name]
    is_number = seconds.isascii() and seconds.isdecimal() and len(seconds) <= len(str(most))
    if anchor not in (None, "created_at") or not is_number or not least <= int(seconds) <= most:
        field = name.partition("[")[0]
        after = "`created_at` and " if field == "expires_after" else ""
        message = f"`{field}` must be {after}a number of seconds from {least} to {most}"
        raise InvalidInput(message, parameter=field)
    return int(seconds)


def _check_metadata(metadata: dict[str, str]) -> None:
    key_chars, value_chars = _MAX_METADATA_CHARS
    is_long = any(len(key) > key_chars or len(value) > value_chars for key, value in metadata.items())
    if len(metadata) > _MAX_METADATA or is_long:
        message = f"`metadata` can have {_MAX_METADATA} values of {value_chars} characters, with keys of {key_chars}"
        raise InvalidInput(message, parameter="metadata")


def _page(call: Call[None], items: Sequence[ListedT], usual: int, most: int) -> tuple[list[ListedT], bool]:
    """The page of a list that the query's `order`, `after` and `limit` select, and whether more items follow.

    The items are given with the newest first.
    """
    order, limit = call.query.get("order"), page_limit(call.query, usual, most)
    if order not in (None, "asc", "desc"):
        raise InvalidInput("`order` must be asc or desc", parameter="order")
    rest = _after_cursor(call, list(items)[::-1] if order == "asc" else list(items), is_rising=order == "asc")
    if name := next((name for name in _AFTER if call.query.get(name)), None):
        rest = rest[_index(call, rest, name) + 1 :]
    if call.query.get("before_id"):
        rest = rest[: _index(call, rest, "before_id")]
        return rest[-limit:], len(rest) > limit
    return rest[:limit], len(rest) > limit


def _after_cursor(call: Call[None], items: list[ListedT], *, is_rising: bool) -> list[ListedT]:
    """The items after the page whose `next_page` the query names. The last item of that page may have been deleted."""
    page = call.query.get("page")
    if not page:
        return items
    match = _CURSOR.fullmatch(page)
    if match is None:
        raise InvalidInput(f"`page` must be the `next_page` of an earlier list, not {page[:100]!r}", parameter="page")
    last = int(match["created_at"]), match["id"]
    return [item for item in items if ((item.created_at, item.id) > last) == is_rising and item.id != match["id"]]


def _index(call: Call[None], items: Sequence[ListedT], name: str) -> int:
    item_id = call.query[name]
    index = next((index for index, item in enumerate(items) if item.id == item_id), None)
    if index is None:
        raise InvalidInput(f"`{name}` names nothing that is stored here: {item_id[:100]!r}", parameter=name)
    return index


def _id(page: Sequence[FileRecord | BatchRecord], index: int) -> str | None:
    return page[index].id if page else None
