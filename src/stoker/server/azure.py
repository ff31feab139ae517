"""Maps the paths of Azure OpenAI to those of OpenAI's API. Knows nothing about what the endpoints do.

    /openai/deployments/smollm2/chat/completions ──► /v1/chat/completions, with the model `smollm2`
    /openai/v1/responses, /openai/responses      ──► /v1/responses

Every later layer sees the mapped path: access control, metrics, logs and the router.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import unquote

import msgspec
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

_PREFIX = "/openai/"
_VERSION = "/v1"
_DEPLOYMENT = "deployment"
"""Key in a scope's state: the name of the deployment in the path."""
_ANY_METHOD = ""
"""Key of the patterns for the paths of all endpoints."""
_PARAMETER = re.compile(r"{\w+(:path)?}")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a path of Azure leads."""

    path: str
    deployment: str | None = None
    """Name of the deployment in the path; None = it has none."""


class AzurePaths:
    """ASGI layer that maps Azure's paths. A path that names none of the endpoints stays as it is, and is unknown.

    A path of an endpoint is also mapped if its method is wrong, so that the router answers with the right methods.

    Args:
        app: the application.
        endpoints: method and path of the endpoints that Azure's clients may reach; paths begin with `/v1`.
        closed: method and path of all others. Nothing is mapped to them.
    """

    def __init__(self, app: ASGIApp, endpoints: Iterable[tuple[str, str]], closed: Iterable[tuple[str, str]]) -> None:
        self._app = app
        patterns: dict[str, list[str]] = {}
        for method, path in endpoints:
            for key in (method, _ANY_METHOD):
                patterns.setdefault(key, []).append(_pattern(path.removeprefix(_VERSION)))
        rests = {method: "|".join(found) for method, found in patterns.items()}
        self._plain = {method: re.compile(f"/openai(?:/v1)?({rest})") for method, rest in rests.items()}
        self._encoded = {method: _deployment_pattern("[^/]+", rest) for method, rest in rests.items()}
        self._decoded = {method: _deployment_pattern(".*?", rest) for method, rest in rests.items()}
        self._closed = [(method, compile_path(path)[0]) for method, path in closed]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _PREFIX in scope["path"]:
            self._map(scope)
        await self._app(scope, receive, send)

    def _map(self, scope: Scope) -> None:
        root = scope.get("root_path", "")
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        path = scope["path"].removeprefix(root)
        if not path.startswith(_PREFIX):
            return
        raw = (scope.get("raw_path") or b"").decode("latin-1").rstrip("/").removeprefix(root)
        found = self._find(method, path, raw) or self._find(_ANY_METHOD, path, raw)
        if found is None or self._is_closed(method, found.path):
            return
        if found.deployment is not None:
            scope["state"][_DEPLOYMENT] = found.deployment
        scope["path"] = f"{root}{found.path}"

    def _find(self, method: str, path: str, raw: str) -> _Place | None:
        if method not in self._plain:
            return None
        if found := self._plain[method].fullmatch(path):
            return _Place(f"{_VERSION}{found[1]}")
        if found := self._encoded[method].fullmatch(raw):
            return _Place(f"{_VERSION}{unquote(found[2])}", unquote(found[1]))
        if (found := self._decoded[method].fullmatch(path)) and found[1]:
            return _Place(f"{_VERSION}{found[2]}", found[1])  # the client did not encode the slashes of a name
        return None

    def _is_closed(self, method: str, path: str) -> bool:
        return any(method == each and pattern.match(path) for each, pattern in self._closed)


def of_deployment(body: T, scope: Scope) -> T:
    """A decoded body with the model that the path names, if any: it counts instead of the field `model`."""
    deployment = scope.get("state", {}).get(_DEPLOYMENT)
    if deployment is None or not isinstance(body, msgspec.Struct) or "model" not in body.__struct_fields__:
        return body
    return msgspec.structs.replace(body, model=deployment)


def _deployment_pattern(name: str, rest: str) -> re.Pattern[str]:
    return re.compile(f"/openai/deployments/({name})({rest})", re.DOTALL)


def _pattern(path: str) -> str:
    """The regular expression of a path in Starlette's notation."""
    pieces, end = list[str](), 0
    for found in _PARAMETER.finditer(path):
        pieces += [re.escape(path[end : found.start()]), ".+" if found[1] else "[^/]+"]
        end = found.end()
    return "".join([*pieces, re.escape(path[end:])])
