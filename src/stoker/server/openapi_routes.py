"""`GET /openapi.json`: what is served here, for tools."""

from __future__ import annotations

from functools import cached_property
from importlib.metadata import version

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from stoker.server.endpoints import ENDPOINTS, OPENAPI
from stoker.server.openapi import openapi_document
from stoker.server.routing import routes_of


class OpenAPIRoutes:
    """The document is made when it is first asked for."""

    def routes(self) -> list[BaseRoute]:
        return [*routes_of(OPENAPI, self.document)]

    async def document(self, _request: Request) -> Response:
        return Response(self._document, media_type="application/json")

    @cached_property
    def _document(self) -> bytes:
        return msgspec.json.encode(openapi_document(ENDPOINTS, version("stoker")))
