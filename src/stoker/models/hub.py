"""Gets files from the Hugging Face hub: which a repository has, and the bytes of one. It knows no cache of ours.

`huggingface_hub` gives the addresses, the token, the session and the offline switch (`HF_ENDPOINT`, `HF_TOKEN`,
`HF_HUB_OFFLINE`). The transfer itself is ours, because theirs retries an unreachable hub for a minute and cannot say
that a disk is full.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import TypeVar
from urllib.parse import urlencode

import httpx2
import msgspec
from huggingface_hub import hf_hub_url

from stoker.errors import DownloadFailed, ModelError, ResourceExhausted
from stoker.models.cache import NewFile, check_free_space, part_note_path, writing
from stoker.models.catalog import HubFile
from stoker.models.hub_http import (
    HUB_ERRORS,
    STALL_S,
    answer,
    endpoint,
    explaining,
    in_background,
    open_response,
    reason,
)
from stoker.models.progress import Progress

T = TypeVar("T")

_MAX_RESUMES = 3
"""In a row, without a byte between them."""
_RESUME_PAUSE_S = 0.5
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_LISTING_BYTES = 32 << 20


class _Sibling(msgspec.Struct):
    rfilename: str


class _Repository(msgspec.Struct):
    """What the hub says about a repository, as far as it matters here."""

    siblings: list[_Sibling]


class FoundModel(msgspec.Struct):
    """A repository that a search on the hub has found."""

    id: str
    """`org/repo`."""
    downloads: int = 0
    """In the last month."""
    tags: list[str] = []

    @property
    def license(self) -> str:
        """As the repository's tags name it; empty if they do not."""
        return next((tag.removeprefix("license:") for tag in self.tags if tag.startswith("license:")), "")


def search_models(words: str, *, limit: int, within_s: float = 10.0) -> list[FoundModel]:
    """Repositories with GGUF files whose names have these words, the most downloaded first.

    Raises:
        DownloadFailed: the hub does not answer within `within_s` seconds, or not with a list.
    """
    query = urlencode({"search": words, "filter": "gguf", "sort": "downloads", "direction": -1, "limit": limit})
    with explaining("the search on the hub failed"):
        return _asked(f"?{query}", list[FoundModel], within_s)[:limit]


def list_files(repo: str, *, within_s: float) -> list[str]:
    """Names of all files of a repository on the hub.

    Raises:
        DownloadFailed: the hub does not answer within `within_s` seconds, or knows no such repository.
    """
    with explaining(f"hub {repo}"):
        return [sibling.rfilename for sibling in _asked(f"/{repo}", _Repository, within_s).siblings]


def _asked(about: str, kind: type[T], within_s: float) -> T:
    with closing(open_response(f"{endpoint()}/api/models{about}", within_s)) as response:
        return msgspec.json.decode(answer(lambda: _read_bounded(response), within_s), type=kind)


def _read_bounded(response: httpx2.Response) -> bytes:
    body = bytearray()
    for piece in response.iter_bytes():
        body += piece
        if len(body) > _MAX_LISTING_BYTES:
            raise ValueError("its file list is too long")
    return bytes(body)


def fetch(source: HubFile, into: Path, progress: Progress, *, within_s: float) -> str | None:
    """Writes a file of the hub to `into`.

    If the hub promises a SHA-256, an interrupted transfer at `into` is continued.

    Args:
        source: the file.
        into: its directory exists; it may be a part with its note (see `part_note_path`).
        progress: told about every piece.
        within_s: how long an unreachable hub may cost, name resolution included.

    Returns:
        The SHA-256 that the hub promises; None if it promises none.

    Raises:
        DownloadFailed: the hub is unreachable, refuses, or the transfer broke and could not be taken up again.
        ResourceExhausted: the disk is full.
    """
    with explaining(str(source)):
        response = open_response(_file_url(source), within_s)
        size, sha256 = _promises(response)
        with closing(_Transfer(source, response, size, progress)) as transfer:
            part = _Part(into, size, sha256)
            check_free_space(into, (size or 0) - part.size_bytes)
            with part, NewFile(into, size, continues=part.size_bytes > 0) as file:
                transfer.write_to(file)
    return sha256


class _Part:
    """What is there already of a file with this content; anything else at its place is removed.

    As a context manager it has the part kept, if what is done in it is broken off: but not if the disk is full.
    """

    def __init__(self, path: Path, size: int | None, sha256: str | None) -> None:
        self._note = part_note_path(path)
        has_size = path.stat().st_size if path.is_file() else 0
        can_go_on = sha256 is not None and self._noted() == sha256 and 0 < has_size < (size or 0)
        self.size_bytes = has_size if can_go_on else 0
        with writing(path, size):
            if not can_go_on:
                path.unlink(missing_ok=True)
            if sha256 is not None:
                self._note.write_text(sha256)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or (issubclass(kind, ResourceExhausted | ModelError) and not issubclass(kind, DownloadFailed)):
            self._note.unlink(missing_ok=True)

    def _noted(self) -> str | None:
        return self._note.read_text(errors="replace") if self._note.is_file() else None


class _Transfer:
    """The body of a response, and after an interruption those of the responses that continue it."""

    def __init__(self, source: HubFile, response: httpx2.Response, size: int | None, progress: Progress) -> None:
        self._source = source
        self._response = response
        self._size = size
        self._progress = progress

    def close(self) -> None:
        self._response.close()

    def write_to(self, file: NewFile) -> None:
        """Writes all of it, or what is missing behind what is in the file already."""
        self._progress.start(self._size, self._source.file)
        if file.size_bytes:
            self._response.close()
            self._progress.advance(file.size_bytes)
        if self._size is not None and pays(self._size - file.size_bytes, self._response):
            self._write_pieces(file, self._size)
        num_failures, before = 0, file.size_bytes
        while file.size_bytes != self._size and (failure := self._attempt(file)) is not None:
            num_failures = 1 if file.size_bytes > before else num_failures + 1
            if num_failures > _MAX_RESUMES:
                raise DownloadFailed(failure)
            before = file.size_bytes
            time.sleep(_RESUME_PAUSE_S * num_failures)

    def _write_pieces(self, file: NewFile, size: int) -> None:
        """Over several connections, as far as that goes; one connection brings what is missing then."""
        self._response.close()
        addresses = [str(self._response.url), _file_url(self._source)]
        with closing(pieces(addresses, file.size_bytes, size)) as arriving, suppress(*HUB_ERRORS, DownloadFailed):
            for piece in arriving:
                file.write(piece)
                self._progress.advance(len(piece))

    def _attempt(self, file: NewFile) -> str | None:
        """Writes what one response gives; says why that was not all, if it was not."""
        try:
            if self._response.is_closed:
                self._continue(file)
            self._write_body(file)
        except (*HUB_ERRORS, DownloadFailed) as error:
            return f"the transfer broke after {file.size_bytes} bytes: {reason(error)}"
        finally:
            self._response.close()
        if self._size is None or file.size_bytes == self._size:
            return None
        if file.size_bytes < self._size:
            return f"the transfer ended after {file.size_bytes} of {self._size} bytes"
        raise DownloadFailed(f"the hub sends more than the {self._size} bytes that it promised")

    def _write_body(self, file: NewFile) -> None:
        for piece in self._response.iter_bytes():
            file.write(piece)
            self._progress.advance(len(piece))
            if self._size is not None and file.size_bytes > self._size:
                return

    def _continue(self, file: NewFile) -> None:
        """Asks for what is missing; begins again if the server cannot give only a part."""
        span = f"{file.size_bytes}-" if file.size_bytes else None
        self._response = open_response(_file_url(self._source), STALL_S, span)
        if self._response.status_code != PARTIAL_CONTENT:
            file.clear()
            self._progress.start(self._size, self._source.file)
            return
        check_part(self._response, file.size_bytes, self._size)


def _file_url(source: HubFile) -> str:
    return hf_hub_url(source.repo, source.file, endpoint=endpoint())


def _promises(response: httpx2.Response) -> tuple[int | None, str | None]:
    """Size in bytes and SHA-256, as far as the hub says them.

    For large files the hub redirects to a store, and says in the redirect what the store will give.
    """
    answers = [*response.history, response]
    etags = [answer.headers.get("x-linked-etag") or answer.headers.get("etag") or "" for answer in answers]
    sums = [etag.removeprefix("W/").strip('"') for etag in etags]
    sizes = [answer.headers.get("x-linked-size") for answer in answers] + [response.headers.get("content-length")]
    size = next((int(size) for size in sizes if size and size.isdecimal()), None)
    return size, next((found for found in sums if _SHA256.fullmatch(found)), None)


MAX_CONNECTIONS = 4
PIECE_BYTES = 8 << 20
"""What one request asks for. As many pieces as there are connections are kept in memory."""
PARTIAL_CONTENT = 206
_PART = re.compile(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|[*])")


def pays(remaining_bytes: int, response: httpx2.Response) -> bool:
    """Whether several connections are worth it, and the server gives parts of the file."""
    return remaining_bytes >= MAX_CONNECTIONS * PIECE_BYTES and response.headers.get("accept-ranges") == "bytes"


def pieces(urls: Sequence[str], offset: int, size: int) -> Generator[bytes]:
    """The file from byte `offset` on, piece by piece; to close the generator ends all transfers.

    Args:
        urls: where the file is; if one address fails for a piece, the following one is tried.
        offset: of the first byte that is missing.
        size: of the whole file, in bytes.

    Raises:
        DownloadFailed, OSError, httpx2.HTTPError: no address gives a piece.
    """
    stopped = Event()
    starts = iter(range(offset, size, PIECE_BYTES))
    under_way: deque[Future[bytes]] = deque()
    try:
        while True:
            while len(under_way) < MAX_CONNECTIONS and (start := next(starts, None)) is not None:
                end = min(start + PIECE_BYTES, size)
                under_way.append(in_background(partial(_piece, urls, start, end, size, stopped)))
            if not under_way:
                return
            yield under_way.popleft().result()
    finally:
        stopped.set()


def _piece(urls: Sequence[str], start: int, end: int, size: int, stopped: Event) -> bytes:
    for is_last, url in enumerate(urls, 1 - len(urls)):
        try:
            with closing(open_response(url, STALL_S, f"{start}-{end - 1}")) as response:
                check_part(response, start, size)
                return _read(response, end - start, stopped)
        except (*HUB_ERRORS, DownloadFailed):
            if is_last == 0 or stopped.is_set():
                raise
    raise AssertionError("unreachable: there is an address")


def check_part(response: httpx2.Response, start: int, size: int | None) -> None:
    """Refuses another part than the one that begins at `start`, and a part of another file."""
    if response.status_code != PARTIAL_CONTENT:
        raise DownloadFailed("the hub gives no parts of the file")
    given = _PART.fullmatch(response.headers.get("content-range") or "")
    has_changed = given is not None and size is not None and given[2] not in (str(size), "*")
    if given is not None and (has_changed or int(given[1]) != start):
        raise DownloadFailed(f"the hub gives {given[0]!r}: another part, or the file has changed meanwhile")


def _read(response: httpx2.Response, num_bytes: int, stopped: Event) -> bytes:
    piece = bytearray()
    for chunk in response.iter_bytes():
        piece += chunk
        if stopped.is_set() or len(piece) > num_bytes:
            break
    if len(piece) != num_bytes:
        raise DownloadFailed(f"a part of {num_bytes} bytes came with {len(piece)}")
    return bytes(piece)
