"""Downloads a file from a URL of a client, from public addresses only: protection against request forgery (SSRF).

The host name is resolved once, and the connection goes to the address that was checked, so a name that later resolves
to another address (DNS rebinding) gains nothing. Every redirect is checked anew. A non-public address and a failed
download give the same error, so that clients cannot learn which ports are open in the server's network.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias
from urllib.parse import SplitResult, urljoin, urlsplit

from stoker.errors import InvalidInput

Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
"""Resolves a name and a port to addresses."""
Connect: TypeAlias = Callable[[str, int, float], socket.socket]
"""Opens a connection to an address and a port, within a number of seconds."""

MAX_REDIRECTS = 3
WAIT_S = 10.0
_PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)
_PIECE = 1 << 16
_MAX_URL = 8192
_HEADERS = {"Accept": "image/*, audio/*", "Accept-Encoding": "identity", "User-Agent": "stoker"}
_NAT64 = ipaddress.ip_network("64:ff9b::/96"), ipaddress.ip_network("64:ff9b:1::/48")


def _resolved(host: str, port: int) -> Sequence[str]:
    return [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _connected(address: str, port: int, wait_s: float) -> socket.socket:
    return socket.create_connection((address, port), timeout=wait_s)


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for downloads: which hosts are allowed, and the time limit.

    Args:
        domains: allowed domains, including their subdomains; empty = every public one.
    """

    domains: tuple[str, ...] = ()
    wait_s: float = WAIT_S
    """Time limit for one file, with all its redirects."""
    resolve: Resolve = _resolved
    connect: Connect = _connected


class _NotHad(Exception):
    """The file cannot be downloaded, or its address is not allowed."""


def fetch(url: str, max_bytes: int, rules: Rules, where: str) -> bytes:
    """Downloads the content of a URL. Blocks, so call it on a separate thread.

    Args:
        url: an `http` or `https` URL, as the client wrote it.
        max_bytes: maximum size of the file, in bytes.
        rules: allowed hosts and time limit.
        where: path of the URL in the request, for the error.

    Raises:
        InvalidInput: the URL breaks a rule, or the file cannot be downloaded or is too large.
    """
    deadline = time.monotonic() + rules.wait_s
    try:
        for _ in range(1 + MAX_REDIRECTS):
            found = _get(_checked(url, rules, where), max_bytes, rules, deadline)
            if isinstance(found, bytes):
                return found
            url = urljoin(url, found)
    except (_NotHad, OSError, http.client.HTTPException, ValueError):
        pass
    raise InvalidInput(f"`{where}`: the file cannot be fetched from its URL; send it as a `data:` URL", parameter=where)


def is_public(address: str) -> bool:
    """Whether an IP address is public. An IPv4 address that an IPv6 address embeds decides for it."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is None and any(ip in network for network in _NAT64):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast


def _checked(url: str, rules: Rules, where: str) -> SplitResult:
    parts = urlsplit(url) if len(url) <= _MAX_URL and url.isprintable() else SplitResult("", "", "", "", "")
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InvalidInput(f"`{where}` must be an http or https URL", parameter=where)
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(f"`{where}` must not have a user or a password in it", parameter=where)
    if parts.port not in (None, *_PORTS.values()):
        raise InvalidInput(f"`{where}` must not name a port other than 80 and 443", parameter=where)
    if rules.domains and not any(_is_below(parts.hostname, domain) for domain in rules.domains):
        raise InvalidInput(f"`{where}`: files of {parts.hostname} are not fetched here", parameter=where)
    return parts


def _is_below(host: str, domain: str) -> bool:
    return host.rstrip(".") == domain.lower() or host.rstrip(".").endswith("." + domain.lower())


def _get(parts: SplitResult, max_bytes: int, rules: Rules, deadline: float) -> bytes | str:
    """The content of a URL, or the target of a redirect."""
    assert parts.hostname is not None
    port = parts.port or _PORTS[parts.scheme]
    addresses = rules.resolve(parts.hostname, port)
    if not addresses or not all(map(is_public, addresses)):
        raise _NotHad
    connection = _Connection(parts.hostname, port, addresses[0], rules, deadline, has_tls=parts.scheme == "https")
    watch = threading.Timer(max(0.0, deadline - time.monotonic()), connection.cut)
    watch.daemon = True
    watch.start()
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers=_HEADERS)
        response = connection.getresponse()
        if response.status in _REDIRECTS and (location := response.getheader("Location")):
            return location
        found = _content(response, max_bytes)
        if not found or time.monotonic() >= deadline:
            raise _NotHad  # a connection cut by the timer looks like a short answer
        return found
    finally:
        watch.cancel()
        connection.close()


def _content(response: http.client.HTTPResponse, max_bytes: int) -> bytes:
    if response.status != http.client.OK or response.getheader("Content-Encoding", "identity") != "identity":
        raise _NotHad
    if response.length is not None and response.length > max_bytes:
        raise _NotHad
    found = bytearray()
    while piece := response.read1(_PIECE):
        found += piece
        if len(found) > max_bytes:
            raise _NotHad
    if response.length:
        raise _NotHad  # the content is incomplete
    return bytes(found)


class _Connection(http.client.HTTPConnection):
    """A connection to one checked address, independent of DNS and of proxies in environment variables."""

    def __init__(self, host: str, port: int, address: str, rules: Rules, deadline: float, *, has_tls: bool) -> None:
        super().__init__(host, port)
        self._address, self._rules, self._deadline, self._has_tls = address, rules, deadline, has_tls
        self.default_port = port  # otherwise the header Host would contain the port

    def connect(self) -> None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise _NotHad
        self.sock = self._rules.connect(self._address, self.port, left_s)
        if self._has_tls:
            self.sock = _tls().wrap_socket(self.sock, server_hostname=self.host)

    def cut(self) -> None:
        """Aborts the connection from another thread, so that a blocked read or write returns."""
        sock = self.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
