"""The bytes of a large file over several connections at once, in order: a store often limits each connection's rate."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from contextlib import closing
from threading import Event, Thread

import httpx2

from stoker.errors import DownloadFailed
from stoker.models.hub_http import HUB_ERRORS, STALL_S, open_response

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
                under_way.append(_begin(urls, start, min(start + PIECE_BYTES, size), size, stopped))
            if not under_way:
                return
            yield under_way.popleft().result()
    finally:
        stopped.set()


def _begin(urls: Sequence[str], start: int, end: int, size: int, stopped: Event) -> Future[bytes]:
    future: Future[bytes] = Future()

    def run() -> None:
        try:
            piece = _piece(urls, start, end, size, stopped)
        except Exception as error:  # noqa: BLE001  # raised where it is waited for
            future.set_exception(error)
        else:
            future.set_result(piece)

    Thread(target=run, name="stoker-hub", daemon=True).start()
    return future


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
