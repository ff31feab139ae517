"""Which pages of the Web may read answers: those that are named in the config, and those that may ask anyway."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from stoker.server.access import is_strangers_page
from stoker.server.config import ServerConfig, listed


class CrossOrigin(CORSMiddleware):
    """Answers preflights, which carry no key, and lets the pages read even errors.

    A page of this machine sends a preflight before any JSON: without an answer to it, it could not use the server.

    Args:
        app: what it stands in front of.
        config: `cors_origins` and `cors_credentials` are used.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig) -> None:
        super().__init__(
            app,
            allow_origins=listed(config.cors_origins),
            allow_methods=["GET", "POST", "DELETE", "HEAD"],
            allow_headers=["*"],
            allow_credentials=config.cors_credentials,
            expose_headers=["x-request-id", "request-id", "retry-after"],
        )

    def is_allowed_origin(self, origin: str) -> bool:
        return super().is_allowed_origin(origin) or not is_strangers_page(origin)
