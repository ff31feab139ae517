"""Which web pages may read answers: those that the config names, and those that may send requests anyway."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from stoker.server.access.control import host_name, is_local, is_strangers_page
from stoker.server.config import ServerConfig, listed


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
