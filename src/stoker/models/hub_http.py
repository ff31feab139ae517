"""Asks the Hugging Face hub over HTTP: one request with its bounds, and what went wrong in words.

`huggingface_hub` gives the address, the token, the session and the offline switch (`HF_ENDPOINT`, `HF_TOKEN`,
`HF_HUB_OFFLINE`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
from huggingface_hub import constants, get_session, get_token

from stoker.errors import DownloadFailed

_T = TypeVar("_T")

STALL_S = 20.0
"""A transfer that has begun may be silent for so long before it is taken up again."""
HUB_ERRORS = (OSError, httpx2.HTTPError, httpx2.InvalidURL, ValueError)
"""What the hub's client raises when the hub, and not we, is at fault."""
_CREDENTIALS = re.compile("^(.*//)?.*@")
_NO_NAME = re.compile("name or service not known|name resolution|nodename nor servname|no address", re.IGNORECASE)
_WAYS = "Behind a proxy set HTTPS_PROXY; set HF_ENDPOINT for a mirror, HF_HUB_OFFLINE=1 to work offline."


def endpoint() -> str:
    """The hub's address."""
    # huggingface_hub reads it once, when imported; an application may set it later.
    return (os.environ.get("HF_ENDPOINT") or "").rstrip("/") or constants.ENDPOINT


def open_response(url: str, within_s: float, span: str | None = None) -> httpx2.Response:
    """A streaming response whose head is here and says yes.

    Args:
        url: of the hub, or of a store that the hub has named. Only the hub gets the token.
        within_s: how long the head may take, name resolution included.
        span: the part of the file to ask for, as HTTP writes it: `1000-`, or `1000-1999`.

    Raises:
        DownloadFailed: the answer is a refusal.
        OSError, httpx2.HTTPError, httpx2.InvalidURL: there is no answer.
    """
    timeout = httpx2.Timeout(STALL_S, connect=within_s)

    def ask() -> httpx2.Response:
        session = get_session()
        request = session.build_request("GET", url, headers=_headers(url, span), timeout=timeout)
        return session.send(request, stream=True, follow_redirects=True)

    with _naming_proxy(url):
        response = answer(ask, within_s, discard=httpx2.Response.close)
    if response.is_success:
        return response
    response.close()
    raise DownloadFailed(_refusal(response))


def _headers(url: str, span: str | None) -> dict[str, str]:
    """Not huggingface_hub's `build_hf_headers`: for its telemetry, that asks the hub first and waits up to 3 s."""
    # Compressed on the way, a file has no length that could be checked.
    headers = {"user-agent": "stoker", "accept-encoding": "identity"}
    is_hub = urlsplit(url).netloc == urlsplit(endpoint()).netloc
    token = get_token() if is_hub and not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else None
    if token:
        headers["authorization"] = f"Bearer {token}"
    if span is not None:
        headers["range"] = f"bytes={span}"
    return headers


def answer(ask: Callable[[], _T], within_s: float, discard: Callable[[_T], None] | None = None) -> _T:
    """The result of `ask`, or TimeoutError after `within_s` seconds; a late result goes to `discard`.

    A thread, because no timeout of the client covers name resolution, and nothing can interrupt it: the thread then
    ends by itself when the resolver gives up, and as a daemon does not hold up the end of the program.
    """
    future = in_background(ask)
    try:
        return future.result(timeout=within_s)
    except TimeoutError:
        if discard is not None:
            future.add_done_callback(lambda late: None if late.exception() else discard(late.result()))
        raise TimeoutError(f"no answer within {within_s:g} s") from None


def in_background(ask: Callable[[], _T]) -> Future[_T]:
    """The result of `ask`, which runs on a thread of its own."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            result = ask()
        except Exception as error:  # noqa: BLE001  # raised where it is waited for
            future.set_exception(error)
        else:
            future.set_result(result)

    Thread(target=run, name="stoker-hub", daemon=True).start()
    return future


@contextmanager
def _naming_proxy(url: str) -> Generator[None]:
    """Says what stands between us and a hub that does not answer: it may be that which does not."""
    try:
        yield
    except ImportError as error:  # it prepares for every proxy of the environment, also one that is not asked
        socks = [proxy for proxy in getproxies().values() if proxy.startswith("socks")]
        needs = [f"the proxy {_without_password(proxy)} needs socksio: pip install 'httpx2[socks]'" for proxy in socks]
        raise DownloadFailed(needs[0] if needs else reason(error)) from error
    except (httpx2.TransportError, TimeoutError) as error:
        proxy = _proxy_of(url)
        if proxy is None:
            raise
        raise DownloadFailed(f"{reason(error)} (through the proxy {proxy})") from error


def _proxy_of(url: str) -> str | None:
    """The proxy that the environment names for `url`, without its password; None if it names none."""
    scheme, host = urlsplit(url)[:2]
    proxies = getproxies()
    proxy = None if proxy_bypass(host) else proxies.get(scheme) or proxies.get("all")
    return proxy and _without_password(proxy)


def _without_password(proxy: str) -> str:
    return _CREDENTIALS.sub(r"\1", proxy)


@contextmanager
def explaining(what: str) -> Generator[None]:
    """Names the source in every error that the hub is to blame for."""
    try:
        yield
    except DownloadFailed as error:
        raise DownloadFailed(f"{what}: {error.message}") from error
    except HUB_ERRORS as error:
        raise DownloadFailed(f"{what}: {_unreachable(error) or reason(error)}") from error


def _unreachable(error: Exception) -> str | None:
    """What a hub that cannot be reached is answered with; None: it was reached."""
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | TimeoutError):
        host = urlsplit(endpoint()).hostname
        why = "no network, or its name cannot be resolved" if _NO_NAME.search(str(error)) else reason(error)
        return f"cannot reach {host}: {why}. {_WAYS}"
    return None


def reason(error: Exception) -> str:
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
