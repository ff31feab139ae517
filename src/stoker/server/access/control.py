"""Which requests are let in: API keys, and web pages that must not reach a server on the user's own machine.

A browser runs foreign pages inside every firewall. They can send requests to a loopback address, if not read
the answers (hence the look at `Origin`), or be served under a name that suddenly means 127.0.0.1 (hence the look at
`Host`; the attack is called DNS rebinding). Programs send neither, or harmless ones.
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
"""In a scope's state: the connection is one too many. Set by the protocol."""

HEALTH_PATHS = ("/health", "/v1/health")
"""Paths that need no key: load balancers have none."""

UI_FOLDER = "/ui/"
"""Files of the page. They and `/` need no key: they are public code, and the page asks for the key itself."""

_OWNER = "owner"
_MAY_ADMINISTER = "may_administer"
_HAS_ADMIN_KEY = "has_admin_key"

_NO_KEY = "an API key is needed: send `Authorization: Bearer KEY` or `x-api-key: KEY`"
_WRONG_KEY = "the API key is wrong"

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")
"""Headers in which a proxy names the client that it forwards for."""
_CROWD_RETRY_S = 1.0


class AccessControl:
    """Passes on what may be answered. Health may always be asked for, and the page needs no key.

    Args:
        app: what it stands in front of.
        config: keys, origins and hosts.
        keys: those of the same config.
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
        """No key, or a wrong one. The key's name goes into the request's account, the rest into the scope's state."""
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
    """The owner of what the server keeps for this client; all clients without a key are one owner."""
    return scope["state"][_OWNER]


def may_administer(scope: Scope) -> bool:
    """The client sent the admin key; if the server has none, the client is a program on this machine."""
    return bool(scope["state"].get(_MAY_ADMINISTER))


def grant(scope: Scope, owner: str) -> None:
    """Lets a request pass that did not go through `AccessControl`: it may do what clients may, as this owner.

    Args:
        scope: of the request, with a state.
        owner: owns what is kept for the request.
    """
    scope["state"].update({_OWNER: owner, _MAY_ADMINISTER: False, _HAS_ADMIN_KEY: True})


def check_admin(scope: Scope) -> None:
    """To be called before an endpoint that changes what the server holds.

    Raises:
        PermissionDenied: there is an admin key, and the client has sent another one or none; or there is none, and the
            client is on another machine.
    """
    if may_administer(scope):
        return
    if scope["state"].get(_HAS_ADMIN_KEY):
        raise PermissionDenied("this needs the server's admin key")
    raise PermissionDenied("from other machines this needs an admin key, and this server has none; see --admin-key")


def is_from_here(scope: Scope, headers: Headers) -> bool:
    """The client is a program on this machine, and no proxy. A client on a local socket has no address."""
    client = scope.get("client")
    return (not client or is_local(client[0])) and not any(name in headers for name in _FORWARDED)


def is_strangers_page(origin: str) -> bool:
    """The page with this origin may come from anywhere. Applications have origins of their own, which no page can have.

    >>> is_strangers_page("http://localhost:3000"), is_strangers_page("http://8.8.8.8"), is_strangers_page("app://x")
    (False, True, False)

    A page hides behind the origin "null" by putting what it does into a sandboxed frame.
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
    """Answers preflights, which carry no key, and lets the pages read even errors.

    A page of this machine sends a preflight before any JSON: without an answer to it, it could not use the server. Of a
    server that listens only there, other machines' pages may read nothing: one of them may be a hostile hotspot's.

    Args:
        app: what it stands in front of.
        config: `host`, `cors_origins` and `cors_credentials` are used.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        self._may_read = is_own_page if is_local(config.host) else is_known_page
        super().__init__(
            app,
            allow_origins=listed(config.cors_origins),
            allow_methods=["GET", "POST", "DELETE", "HEAD"],
            allow_headers=["*"],
            allow_private_network=True,  # who may ask a server of this machine at all, may ask it from the Internet
            allow_credentials=config.cors_credentials,
            expose_headers=["x-request-id", "request-id", "retry-after", "x-should-retry"],
        )

    def is_allowed_origin(self, origin: str) -> bool:
        return super().is_allowed_origin(origin) or self._may_read(origin)


def is_own_page(origin: str) -> bool:
    """The page is of this machine, or of an application."""
    name = host_name(origin.partition("://")[2])
    is_here = is_local(name) or name.endswith(".localhost")
    return is_here if origin.startswith(("http://", "https://")) else is_known_page(origin)


def is_known_page(origin: str) -> bool:
    """The page is of this machine's network, or of an application."""
    return not is_strangers_page(origin)
