"""Maps the paths of Azure OpenAI to those of OpenAI's API. Knows nothing about what the endpoints do.

    /openai/deployments/smollm2/chat/completions ──► /v1/chat/completions, with the model `smollm2`
    /openai/v1/responses, /openai/responses      ──► /v1/responses

Every later layer sees the mapped path: access control, metrics, logs and the router.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar
from urllib.parse import unquote

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

_PREFIX = "/openai/"
_VERSION = "/v1"
_DEPLOYMENT = "deployment"
"""Key in a scope's state: the name of the deployment in the path."""
_PARAMETER = re.compile(r"{\w+(:path)?}")

T = TypeVar("T")


class AzurePaths:
    """ASGI layer that maps Azure's paths. A path that names none of the endpoints stays as it is, and is unknown.

    Args:
        app: the application.
        endpoints: method and path of the endpoints that Azure's clients may reach; paths begin with `/v1`.
    """

    def __init__(self, app: ASGIApp, endpoints: Iterable[tuple[str, str]]) -> None:
        self._app = app
        patterns: dict[str, list[str]] = {}
        for method, path in endpoints:
            patterns.setdefault(method, []).append(_pattern(path.removeprefix(_VERSION)))
        rests = {method: "|".join(found) for method, found in patterns.items()}
        self._plain = {method: re.compile(f"/openai(?:/v1)?({rest})") for method, rest in rests.items()}
        self._encoded = {method: _deployment_pattern("[^/]+", rest) for method, rest in rests.items()}
        self._decoded = {method: _deployment_pattern(".*?", rest) for method, rest in rests.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _PREFIX in scope["path"]:
            self._map(scope)
        await self._app(scope, receive, send)

    def _map(self, scope: Scope) -> None:
        root, method = scope.get("root_path", ""), scope["method"]
        path = scope["path"].removeprefix(root)
        if method not in self._plain or not path.startswith(_PREFIX):
            return
        raw = (scope.get("raw_path") or b"").decode("latin-1").rstrip("/").removeprefix(root)
        if found := self._plain[method].fullmatch(path):
            rest = found[1]
        elif found := self._encoded[method].fullmatch(raw):
            scope["state"][_DEPLOYMENT], rest = unquote(found[1]), unquote(found[2])
        elif (found := self._decoded[method].fullmatch(path)) and found[1]:
            scope["state"][_DEPLOYMENT], rest = found[1], found[2]  # the client did not encode the slashes of a name
        else:
            return
        scope["path"] = f"{root}{_VERSION}{rest}"


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
