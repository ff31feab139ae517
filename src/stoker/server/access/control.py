"""Access control of the HTTP server: API keys, and protection of a local server from foreign web pages.

A browser runs foreign pages inside every firewall. Such a page can send requests to a loopback address, even if it
cannot read the answers, so `Origin` is checked. It can also be served under a name that later resolves to 127.0.0.1
(DNS rebinding), so `Host` is checked. Other programs send neither header, or harmless values.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from stoker.errors import AuthenticationFailed, Overloaded, PermissionDenied, StokerError
from stoker.server.access.hosts import is_local, is_local_name
from stoker.server.access.keys import ApiKeys, sent_keys
from stoker.server.config import ServerConfig, listed
from stoker.server.errors import error_response
from stoker.server.observe.account import account_of

CROWDED = "is_crowded"
"""Key in a scope's state: the connection is beyond `max_connections`. Set by the protocol."""

HEALTH_PATHS = ("/health", "/v1/health", "/ping")
"""Paths that need no API key, because load balancers have none."""

UI_FOLDER = "/ui/"
"""Path of the web page's files. They and `/` need no API key: they are public code, and the page asks for the key."""

_OWNER = "owner"
_MAY_ADMINISTER = "may_administer"
_HAS_ADMIN_KEY = "has_admin_key"

_NO_KEY = "an API key is needed: send `Authorization: Bearer KEY`, `x-api-key: KEY` or `api-key: KEY`"
_WRONG_KEY = "the API key is wrong"

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")
"""Headers in which a reverse proxy names the client whose request it forwards."""
_CROWD_RETRY_S = 1.0


class AccessControl:
    """ASGI layer that refuses requests by connection limit, host, origin and API key.

    Requests for health are never refused, and requests for the web page need no API key.

    Args:
        app: the application that gets the accepted requests.
        config: says which origins and hosts are allowed.
        keys: the API keys of the same configuration.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig, keys: ApiKeys) -> None:
        self._app = app
        self._config = config
        self._keys = keys
        self._origins = frozenset(listed(config.cors_origins))
        self._hosts = frozenset(host.lower() for host in listed(config.allowed_hosts))
        self._checks_host = is_local(config.host) and not config.unix_socket and "*" not in self._hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._refusal(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
        else:
            response = error_response(error, scope)
            if scope.get("state", {}).get(CROWDED):
                response.headers["Connection"] = "close"
            await response(scope, receive, send)

    def _refusal(self, scope: Scope) -> StokerError | None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        reads = scope["method"] in ("GET", "HEAD")
        if reads and path in HEALTH_PATHS:
            return None
        headers = Headers(scope=scope)
        refusal = self._crowd(scope) or self._foreign(headers)
        is_public = reads and (path == "/" or path.startswith(UI_FOLDER))
        return refusal if refusal or is_public else self._unknown(scope, headers)

    def _crowd(self, scope: Scope) -> StokerError | None:
        if not scope.get("state", {}).get(CROWDED):
            return None
        message = f"more than {self._config.max_connections} connections are open; try again in {_CROWD_RETRY_S:g} s"
        return Overloaded(message, retry_after_s=_CROWD_RETRY_S)

    def _foreign(self, headers: Headers) -> StokerError | None:
        host = host_name(headers.get("host", ""))
        if self._checks_host and not (is_local_name(host) or host in self._hosts):
            return PermissionDenied(f"requests for the host {host[:100]!r} are not allowed; see --allowed-hosts")
        origin = headers.get("origin", "")
        if self._keys.has_clients or self._is_trusted(origin, host):
            return None
        return PermissionDenied(f"requests from the origin {origin[:100]!r} are not allowed; see --cors-origins")

    def _is_trusted(self, origin: str, host: str) -> bool:
        if not origin or self._origins & {"*", origin} or not is_strangers_page(origin):
            return True
        return host_name(origin.partition("://")[2]) == host

    def _unknown(self, scope: Scope, headers: Headers) -> StokerError | None:
        """The error for a missing or wrong API key; None if the client is known.

        The key's name goes into the request's account, the owner and the right to administer into the scope's state.
        """
        key = self._keys.match(headers)
        if key is None and self._keys.has_clients:
            return AuthenticationFailed(_WRONG_KEY if sent_keys(headers) else _NO_KEY)
        account_of(scope).key_name = key.name if key is not None else ""
        scope["state"][_OWNER] = key.owner if key is not None else ""
        is_admin = key is not None and key.is_admin
        scope["state"][_MAY_ADMINISTER] = is_admin if self._keys.has_admin else is_from_here(scope, headers)
        scope["state"][_HAS_ADMIN_KEY] = self._keys.has_admin
        return None


def owner_of(scope: Scope) -> str:
    """The owner of everything that the server stores for this client; all clients without an API key are one owner."""
    return scope["state"][_OWNER]


def may_administer(scope: Scope) -> bool:
    """Whether the client sent the admin key or, if the server has none, is a program on this machine."""
    return bool(scope["state"].get(_MAY_ADMINISTER))


def grant(scope: Scope, owner: str) -> None:
    """Gives the rights of a client, without administration, to a request that bypasses `AccessControl`.

    Args:
        scope: scope of the request, with a state.
        owner: owner of everything that the server stores for the request.
    """
    scope["state"].update({_OWNER: owner, _MAY_ADMINISTER: False, _HAS_ADMIN_KEY: True})


def check_admin(scope: Scope) -> None:
    """Checks that the client may administer the server. Called before endpoints that change the server's state.

    Raises:
        PermissionDenied: the server has an admin key, and the client did not send it; or the server has none, and the
            client is on another machine.
    """
    if may_administer(scope):
        return
    if scope["state"].get(_HAS_ADMIN_KEY):
        raise PermissionDenied("this needs the server's admin key")
    raise PermissionDenied("from other machines this needs an admin key, and this server has none; see --admin-key")


def is_from_here(scope: Scope, headers: Headers) -> bool:
    """Whether the client is a program on this machine and not a proxy. A client on a Unix socket has no address."""
    client = scope.get("client")
    return (not client or is_local(client[0])) and not any(name in headers for name in _FORWARDED)


def is_strangers_page(origin: str) -> bool:
    """Whether a page with this origin may come from the Internet. Desktop applications have origins no page can have.

    >>> is_strangers_page("http://localhost:3000"), is_strangers_page("http://8.8.8.8"), is_strangers_page("app://x")
    (False, True, False)

    "null" counts as foreign, because a page can get that origin by sending requests from a sandboxed frame.
    """
    if not origin.startswith(("http://", "https://")):
        return origin == "null"
    name = host_name(origin.partition("://")[2])
    try:
        return not ip_address(name).is_private
    except ValueError:
        return not is_local_name(name)


def host_name(authority: str) -> str:
    """Lower-case name of `host:port`, without the port and the brackets of an IPv6 address.

    >>> host_name("[::1]:8080"), host_name("Example.com:80")
    ('::1', 'example.com')
    """
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return authority.lower()


class CrossOrigin(CORSMiddleware):
    """CORS layer outside of `AccessControl`, so that preflights need no API key and pages can read errors.

    A browser sends a preflight before a page's JSON request, and blocks the request if the preflight is not answered.
    If the server listens only on this machine, pages from other machines of the local network may read nothing unless
    `cors_origins` lists them, because one of them may be a hostile hotspot's.

    Args:
        app: the wrapped application.
        config: `host`, `cors_origins` and `cors_credentials` are used.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._may_read = is_own_page if is_local(config.host) else is_known_page
        super().__init__(
            app,
            allow_origins=listed(config.cors_origins),
            allow_methods=["GET", "POST", "DELETE", "HEAD"],
            allow_headers=["*"],
            allow_private_network=True,  # allowed origins may send requests from the Internet to a private address
            allow_credentials=config.cors_credentials,
            expose_headers=["x-request-id", "request-id", "retry-after", "x-should-retry"],
        )

    def is_allowed_origin(self, origin: str) -> bool:
        return super().is_allowed_origin(origin) or self._may_read(origin)


def is_own_page(origin: str) -> bool:
    """Whether the page comes from this machine or belongs to a desktop application."""
    name = host_name(origin.partition("://")[2])
    is_here = is_local(name) or name.endswith(".localhost")
    return is_here if origin.startswith(("http://", "https://")) else is_known_page(origin)


def is_known_page(origin: str) -> bool:
    """Whether the page comes from this machine's network or belongs to a desktop application."""
    return not is_strangers_page(origin)
