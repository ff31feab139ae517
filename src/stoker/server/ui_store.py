"""Conversations of the page, kept in a folder of the server: `/ui-store/chats`. Each API key has its own.

FOLDER/<owner>/<id>.json   a conversation as the page wrote it; its time of change is in its first field
FOLDER/<owner>/<id>.gone   it was deleted, so that other browsers delete it too
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
from stoker.server.access.control import owner_of
from stoker.server.api import Call, Router
from stoker.server.errors import json_response
from stoker.server.transport.connection import read_body
from stoker.server.whole_files import write_whole

router = Router(api="Stoker")

_ID = re.compile(r"[0-9A-Za-z_-]{1,64}")
_MAX_TIME = 2**53


class ChatBody(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation. The server reads these two fields; all others are the page's own."""

    id: str
    updated: float
    """Unix time in milliseconds. The newest version counts."""


class ChatHead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the list says of a conversation."""

    id: str
    updated: float
    gone: bool = False
    """It was deleted."""


class ChatList(msgspec.Struct, frozen=True):
    kept: bool
    """The server keeps conversations: it was started with `--ui-store`."""
    chats: list[ChatHead]


class ChatFolder:
    """The conversations of one owner. Its methods read and write files; several processes may do so at the same time.

    Args:
        root: the folder of all owners.
        owner: whose they are.
    """

    def __init__(self, root: Path, owner: str) -> None:
        self._folder = root / sha256(b"stoker chats\0" + owner.encode()).hexdigest()[:32]

    def heads(self) -> list[ChatHead]:
        """Every conversation, and those that were deleted."""
        return list(self._heads())

    def read(self, chat_id: str) -> bytes | None:
        """The conversation as it was written; None = there is none."""
        try:
            return self._path(chat_id, "json").read_bytes()
        except FileNotFoundError:
            return None

    def write(self, head: ChatBody, content: bytes) -> bool:
        """Keeps a conversation. False: a newer version, or a newer deletion, is there already."""
        if self._newest(head.id) > round(head.updated):
            return False
        self._put(head.id, "json", head.updated, content)
        self._path(head.id, "gone").unlink(missing_ok=True)
        return True

    def delete(self, chat_id: str, time_ms: float) -> None:
        """Deletes a conversation, and notes that."""
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
    """When a conversation was changed, in milliseconds; 0 = there is no such file."""
    try:
        return round(path.stat().st_mtime_ns / 1e6)
    except OSError:
        return 0


@router.endpoint("GET", "/ui-store/chats", "Lists the conversations that the page has stored here.", reply=ChatList)
async def list_chats(call: Call[None]) -> Response:
    """Without `--ui-store` too: the page asks for it, and a browser would report an error as a fault."""
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
    """The body is a conversation as the page has it: the server reads only its head, and keeps the rest as it is."""
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
    """404 without `--ui-store`: the page keeps its conversations in the browser then."""
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
