"""Gets files from the Hugging Face hub: which a repository has, and the bytes of one. It knows no cache of ours.

`huggingface_hub` gives the addresses, the token, the session and the offline switch (`HF_ENDPOINT`, `HF_TOKEN`,
`HF_HUB_OFFLINE`). The transfer itself is ours, because theirs retries an unreachable hub for a minute and cannot say
that a disk is full.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import TypeVar
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
import msgspec
from huggingface_hub import constants, get_session, get_token, hf_hub_url

from stoker.errors import DownloadFailed, ModelError, ResourceExhausted
from stoker.models.cache import NewFile, check_free_space, part_note_path, writing
from stoker.models.catalog import HubFile
from stoker.models.progress import Progress

_T = TypeVar("_T")

_STALL_S = 20.0
"""A transfer that has begun may be silent for so long before it is taken up again."""
_MAX_RESUMES = 3
"""In a row, without a byte between them."""
_RESUME_PAUSE_S = 0.5
_PARTIAL_CONTENT = 206
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(r"bytes ([0-9]{1,18})-[0-9]{1,18}/([0-9]{1,18}|[*])")
_CREDENTIALS = re.compile("^(.*//)?.*@")
_NO_NAME = re.compile("name or service not known|name resolution|nodename nor servname|no address", re.IGNORECASE)
_WAYS = "Behind a proxy set HTTPS_PROXY; set HF_ENDPOINT for a mirror, HF_HUB_OFFLINE=1 to work offline."
_MAX_LISTING_BYTES = 32 << 20
_HUB_ERRORS = (OSError, httpx2.HTTPError, httpx2.InvalidURL, ValueError)
"""What the hub's client raises when the hub, and not we, is at fault."""


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
    with _explaining("search on the hub"):
        response = _open(f"{_endpoint() or constants.ENDPOINT}/api/models?{query}", 0, within_s)
        with closing(response):
            body = _answer(lambda: _read_bounded(response), within_s)
        return msgspec.json.decode(body, type=list[FoundModel])[:limit]


def list_files(repo: str, *, within_s: float) -> list[str]:
    """Names of all files of a repository on the hub.

    Raises:
        DownloadFailed: the hub does not answer within `within_s` seconds, or knows no such repository.
    """

    with _explaining(f"hub {repo}"):
        response = _open(f"{_endpoint() or constants.ENDPOINT}/api/models/{repo}", 0, within_s)
        with closing(response):
            body = _answer(lambda: _read_bounded(response), within_s)
        return [sibling.rfilename for sibling in msgspec.json.decode(body, type=_Repository).siblings]


def _read_bounded(response: httpx2.Response) -> bytes:
    body = bytearray()
    for piece in response.iter_bytes():
        body += piece
        if len(body) > _MAX_LISTING_BYTES:
            raise ValueError("its list of files is too long")
    return bytes(body)


def fetch(source: HubFile, into: Path, progress: Progress, *, within_s: float) -> str | None:
    """Writes a file of the hub to `into`.

    If the hub promises a SHA-256, what a transfer that broke off has left at `into` is continued by the next one.

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
    with _explaining(str(source)):
        response = _open(_file_url(source), 0, within_s)
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
        num_failures, before = 0, 0
        while (failure := self._attempt(file)) is not None:
            num_failures = 1 if file.size_bytes > before else num_failures + 1
            if num_failures > _MAX_RESUMES:
                raise DownloadFailed(failure)
            before = file.size_bytes
            time.sleep(_RESUME_PAUSE_S * num_failures)

    def _attempt(self, file: NewFile) -> str | None:
        """Writes what one response gives; says why that was not all, if it was not."""
        try:
            if self._response.is_closed:
                self._continue(file)
            self._write_body(file)
        except (*_HUB_ERRORS, DownloadFailed) as error:
            return f"the transfer broke after {file.size_bytes} bytes: {_reason(error)}"
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
        self._response = _open(_file_url(self._source), file.size_bytes, _STALL_S)
        if self._response.status_code != _PARTIAL_CONTENT:
            file.clear()
            self._progress.start(self._size, self._source.file)
            return
        given = _PART.fullmatch(self._response.headers.get("content-range") or "")
        has_changed = given is not None and self._size is not None and given[2] not in (str(self._size), "*")
        if given is not None and (has_changed or int(given[1]) != file.size_bytes):
            raise DownloadFailed(f"the hub gives {given[0]!r}: another part, or the file has changed meanwhile")


def _open(url: str, offset: int, within_s: float) -> httpx2.Response:
    """A streaming response whose head is here and says yes."""
    timeout = httpx2.Timeout(_STALL_S, connect=within_s)

    def ask() -> httpx2.Response:
        session = get_session()
        request = session.build_request("GET", url, headers=_headers(offset), timeout=timeout)
        return session.send(request, stream=True, follow_redirects=True)

    with _naming_proxy(url):
        response = _answer(ask, within_s, discard=httpx2.Response.close)
    if response.is_success:
        return response
    response.close()
    raise DownloadFailed(_refusal(response))


def _headers(offset: int) -> dict[str, str]:
    """Not huggingface_hub's `build_hf_headers`: for its telemetry, that asks the hub first and waits up to 3 s."""
    # Compressed on the way, a file has no length that could be checked.
    headers = {"user-agent": "stoker", "accept-encoding": "identity"}
    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    if token:
        headers["authorization"] = f"Bearer {token}"
    if offset:
        headers["range"] = f"bytes={offset}-"
    return headers


def _file_url(source: HubFile) -> str:
    return hf_hub_url(source.repo, source.file, endpoint=_endpoint())


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


def _answer(ask: Callable[[], _T], within_s: float, discard: Callable[[_T], None] | None = None) -> _T:
    """The result of `ask`, or TimeoutError after `within_s` seconds; a late result goes to `discard`.

    A thread, because no timeout of the client covers name resolution, and nothing can interrupt it: the thread then
    ends by itself when the resolver gives up, and as a daemon does not hold up the end of the program.
    """
    future: Future[_T] = Future()

    def run() -> None:
        try:
            result = ask()
        except Exception as error:  # noqa: BLE001  # raised where it is waited for
            future.set_exception(error)
        else:
            future.set_result(result)

    Thread(target=run, name="stoker-hub", daemon=True).start()
    try:
        return future.result(timeout=within_s)
    except TimeoutError:
        if discard is not None:
            future.add_done_callback(lambda late: None if late.exception() else discard(late.result()))
        raise TimeoutError(f"no answer within {within_s:g} s") from None


@contextmanager
def _naming_proxy(url: str) -> Generator[None]:
    """Says what stands between us and a hub that does not answer: it may be that which does not."""
    try:
        yield
    except ImportError as error:  # it prepares for every proxy of the environment, also one that is not asked
        socks = [proxy for proxy in getproxies().values() if proxy.startswith("socks")]
        needs = [f"the proxy {_without_password(proxy)} needs socksio: pip install 'httpx2[socks]'" for proxy in socks]
        raise DownloadFailed(needs[0] if needs else _reason(error)) from error
    except (httpx2.TransportError, TimeoutError) as error:
        proxy = _proxy_of(url)
        if proxy is None:
            raise
        raise DownloadFailed(f"{_reason(error)} (through the proxy {proxy})") from error


def _proxy_of(url: str) -> str | None:
    """The proxy that the environment names for `url`, without its password; None if it names none."""
    scheme, host = urlsplit(url)[:2]
    proxies = getproxies()
    proxy = None if proxy_bypass(host) else proxies.get(scheme) or proxies.get("all")
    return proxy and _without_password(proxy)


def _without_password(proxy: str) -> str:
    return _CREDENTIALS.sub(r"\1", proxy)


@contextmanager
def _explaining(what: str) -> Generator[None]:
    """Names the source in every error that the hub is to blame for."""
    try:
        yield
    except DownloadFailed as error:
        raise DownloadFailed(f"{what}: {error.message}") from error
    except _HUB_ERRORS as error:
        raise DownloadFailed(f"{what}: {_unreachable(error) or _reason(error)}") from error


def _unreachable(error: Exception) -> str | None:
    """What a hub that cannot be reached is answered with; None: it was reached."""
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | TimeoutError):
        host = urlsplit(_endpoint() or constants.ENDPOINT).hostname
        why = "no network, or its name cannot be resolved" if _NO_NAME.search(str(error)) else _reason(error)
        return f"cannot reach {host}: {why}. {_WAYS}"
    return None


def _reason(error: Exception) -> str:
    response = getattr(error, "response", None)
    if isinstance(response, httpx2.Response):
        return _refusal(response)
    return " ".join(str(error).split()) or type(error).__name__


def _refusal(response: httpx2.Response) -> str:
    status = response.status_code
    if response.headers.get("x-error-code") == "GatedRepo":
        return f"refused ({status}): the repository is gated; accept its terms on its page, and set HF_TOKEN"
    if status in (401, 403):
        return f"refused ({status}): no such repository, or it is private or gated and HF_TOKEN does not open it"
    if status == 404:
        return "no such repository or file (404)"
    if status == 429:
        return "the hub has had too many requests from here (429); wait a few minutes, or set HF_TOKEN"
    return f"the hub answered with status {status}" + ("; try again later" if status >= 500 else "")


def _endpoint() -> str | None:
    # huggingface_hub reads it once, when imported; an application may set it later.
    return (os.environ.get("HF_ENDPOINT") or "").rstrip("/") or None
