"""Stores the web page's conversations in a folder of the server: `/ui-store/chats`. Each API key has its own.

FOLDER/<owner>/<id>.json   a conversation as the page wrote it; the file's time of change is its `updated`
FOLDER/<owner>/<id>.gone   marks a deleted conversation, so that other browsers delete it too
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from stoker.errors import InvalidInput
from stoker.models.whole_files import write_whole
from stoker.server.access.control import owner_of
from stoker.server.api import Call, Router
from stoker.server.errors import json_response
from stoker.server.transport.connection import read_body

router = Router(api="Stoker")

_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
_MAX_TIME = 2**53


class ChatBody(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a conversation that the server reads; only the page reads the others."""

    id: str
    updated: float
    """Time of the last change, as Unix time in milliseconds. Only the newest version is stored."""


class ChatHead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A conversation in the list."""

    id: str
    updated: float
    gone: bool = False
    """Whether the conversation was deleted."""


class ChatList(msgspec.Struct, frozen=True):
    kept: bool
    """Whether the server stores conversations, that is, was started with `--ui-store`."""
    chats: list[ChatHead]


class ChatFolder:
    """The stored conversations of one owner. The methods access files; several processes may do so at the same time.

    Args:
        root: the folder of all owners.
        owner: owner of the conversations.
    """

    def __init__(self, root: Path, owner: str) -> None:
        self._folder = root / sha256(b"stoker chats\0" + owner.encode()).hexdigest()[:32]

    def heads(self) -> list[ChatHead]:
        """All conversations, including the marks of deleted ones."""
        return list(self._heads())

    def read(self, chat_id: str) -> bytes | None:
        """The conversation as it was written; None = there is none."""
        try:
            return self._path(chat_id, "json").read_bytes()
        except FileNotFoundError:
            return None

    def write(self, head: ChatBody, content: bytes) -> bool:
        """Stores a conversation. False: not stored, because a newer version or deletion is stored already."""
        if self._newest(head.id) > round(head.updated):
            return False
        self._put(head.id, "json", head.updated, content)
        self._path(head.id, "gone").unlink(missing_ok=True)
        return True

    def delete(self, chat_id: str, time_ms: float) -> None:
        """Deletes a conversation, and leaves a mark of the deletion."""
        self._put(chat_id, "gone", time_ms, b"")
        self._path(chat_id, "json").unlink(missing_ok=True)

    def _put(self, chat_id: str, suffix: str, time_ms: float, content: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(self._path(chat_id, suffix), content, time_ns=int(time_ms * 1e6))

    def _heads(self) -> Iterator[ChatHead]:
        for path in self._folder.glob("*.*"):
            if path.suffix in (".json", ".gone") and (time_ms := _time_ms(path)):
                yield ChatHead(id=path.stem, updated=time_ms, gone=path.suffix == ".gone")

    def _newest(self, chat_id: str) -> float:
        return max(_time_ms(self._path(chat_id, "json")), _time_ms(self._path(chat_id, "gone")))

    def _path(self, chat_id: str, suffix: str) -> Path:
        return self._folder / f"{chat_id}.{suffix}"


def _time_ms(path: Path) -> float:
    """Time of change of a file, as Unix time in milliseconds; 0 = there is no such file."""
    try:
        return round(path.stat().st_mtime_ns / 1e6)
    except OSError:
        return 0


@router.endpoint("GET", "/ui-store/chats", "Lists the conversations that the page has stored here.", reply=ChatList)
async def list_chats(call: Call[None]) -> Response:
    """The list; it is empty without `--ui-store`, because the page always requests it and browsers log each error."""
    if not call.config.ui_store:
        return json_response(ChatList(kept=False, chats=[]))
    return json_response(ChatList(kept=True, chats=await call.off_loop(_folder(call).heads)))


@router.endpoint("GET", "/ui-store/chats/{chat_id}", "A conversation that the page has stored here.", reply=ChatBody)
async def read_chat(call: Call[None]) -> Response:
    content = await call.off_loop(_folder(call).read, _id(call))
    if content is None:
        raise HTTPException(404)
    return Response(content, media_type="application/json")


@router.endpoint(
    "PUT",
    "/ui-store/chats/{chat_id}",
    "Stores a conversation of the page, unless a newer version is stored.",
    reply=ChatHead,
)
async def write_chat(call: Call[None]) -> Response:
    """Stores a conversation as the page sent it; the server reads only its `ChatBody`. 409 if a newer one is stored."""
    body = await read_body(call.request, call.config)
    head = _head(body)
    if head.id != _id(call):
        raise InvalidInput("`id` differs from the address", parameter="id")
    folder = _folder(call)
    is_written = await call.off_loop(folder.write, head, body)
    return json_response(ChatHead(id=head.id, updated=head.updated), status=200 if is_written else 409)


@router.endpoint("DELETE", "/ui-store/chats/{chat_id}", "Deletes a stored conversation.", query={"updated": float})
async def delete_chat(call: Call[None]) -> Response:
    await call.off_loop(_folder(call).delete, _id(call), _time(call.query.get("updated") or ""))
    return Response(status_code=204)


def _folder(call: Call[Any]) -> ChatFolder:
    """The folder of the client; 404 without `--ui-store`, when the page keeps its conversations in the browser."""
    if not call.config.ui_store:
        raise HTTPException(404)
    return ChatFolder(Path(call.config.ui_store).expanduser(), owner_of(call.request.scope))


def _id(call: Call[Any]) -> str:
    name = call.path_parameter("chat_id")
    if not _ID.fullmatch(name):
        raise InvalidInput("an id has up to 64 letters, digits, `_` and `-`", parameter="chat_id")
    return name


def _head(body: bytes) -> ChatBody:
    try:
        head = msgspec.json.decode(body, type=ChatBody)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the body is no conversation: {error}") from None
    _check_time(head.updated)
    return head


def _time(text: str) -> float:
    try:
        return _check_time(float(text))
    except ValueError:
        raise InvalidInput("`updated` must be a time in milliseconds", parameter="updated") from None


def _check_time(time_ms: float) -> float:
    if not 0 < time_ms < _MAX_TIME:
        raise InvalidInput("`updated` must be a time in milliseconds", parameter="updated")
    return time_ms
