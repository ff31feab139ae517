"""The HTTP surface as an OpenAPI 3.1 document, generated from the list of endpoints and their msgspec types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from stoker.server.api import Endpoint
from stoker.server.error_types import ErrorBody
from stoker.server.fields import Honoured

Schema: TypeAlias = dict[str, Any]

_ERRORS: Mapping[int, str] = {
    400: "The request is not valid.",
    401: "The API key is missing or wrong.",
    403: "The API key, or the machine of the client, is not allowed to do this.",
    404: "Not found.",
    408: "The body took too long.",
    413: "The body is too large.",
    415: "The body is compressed.",
    429: "The queue is full; try again after `Retry-After`.",
    500: "Internal error.",
    503: "The model cannot answer now; try again after `Retry-After`.",
    504: "The request's deadline passed.",
    529: "The model cannot answer now.",
}
"""Statuses besides 200 that an endpoint may answer with, and their descriptions."""

_REF = "#/components/schemas/{name}"


def openapi_document(endpoints: Sequence[Endpoint], version: str) -> Schema:
    """The OpenAPI document.

    Args:
        endpoints: all endpoints of the server.
        version: version of this package.
    """
    types = list(dict.fromkeys(kind for endpoint in endpoints for kind in _types(endpoint)))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, Schema] = {}
    for endpoint in endpoints:
        for path in endpoint.paths:
            paths.setdefault(_openapi_path(path), {})[endpoint.method.lower()] = _operation(endpoint, path, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Stoker", "version": version},
        "paths": paths,
        "components": {"schemas": components},
    }


def _types(endpoint: Endpoint) -> Iterable[Any]:
    parts = (
        endpoint.request,
        endpoint.form,
        *_each(endpoint.reply),
        *_each(endpoint.event),
        endpoint.error or ErrorBody,
    )
    return (part for part in parts if part is not None)


def _each(kinds: Any) -> tuple[Any, ...]:
    """The types of a field of `Endpoint`, which has one type, a tuple of types, or None."""
    if kinds is None:
        return ()
    return cast("tuple[Any, ...]", kinds) if isinstance(kinds, tuple) else (kinds,)


def _operation(endpoint: Endpoint, path: str, schemas: Mapping[Any, Schema]) -> Schema:
    error = _json(schemas[endpoint.error or ErrorBody])
    operation: Schema = {
        "tags": [endpoint.api],
        "summary": endpoint.summary,
        "description": _description(endpoint),
        "operationId": _operation_id(endpoint, path),
        "parameters": [*_path_parameters(path), *_query_parameters(endpoint)],
        "responses": {
            "200": {"description": endpoint.summary, "content": _reply_content(endpoint, schemas)},
            **{str(status): {"description": text, "content": error} for status, text in _ERRORS.items()},
        },
    }
    if endpoint.request is not None:
        operation["requestBody"] = {
            "required": not endpoint.has_optional_body,
            "content": _json(schemas[endpoint.request]),
        }
    if endpoint.form is not None:
        operation["requestBody"] = {"content": {"multipart/form-data": {"schema": schemas[endpoint.form]}}}
    return operation


def _description(endpoint: Endpoint) -> str:
    """Describes the fields that are refused or ignored, because the schema of the wire type does not have them."""
    lines = [
        f"- `{name}` is {type(policy).__name__.lower()}: {policy.reason}"
        for name, policy in sorted(endpoint.fields.items())
        if not isinstance(policy, Honoured)
    ]
    return "\n".join(["Fields that are not in the schema:", "", *lines]) if lines else ""


def _reply_content(endpoint: Endpoint, schemas: Mapping[Any, Schema]) -> Schema:
    no_schema: Schema = {}
    replies = [schemas[kind] for kind in _each(endpoint.reply)]
    content = _json(_one_of(replies)) if replies else {"text/plain": no_schema}
    if events := [schemas[kind] for kind in _each(endpoint.event)]:
        content[endpoint.stream_media] = {"schema": _one_of(events)}
    return content


def _one_of(schemas: Sequence[Schema]) -> Schema:
    return schemas[0] if len(schemas) == 1 else {"oneOf": schemas}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _path_parameters(path: str) -> list[Schema]:
    names = re.findall(r"{(\w+)(?::\w+)?}", path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(endpoint: Endpoint) -> list[Schema]:
    return [
        {"name": name, "in": "query", "required": False, "schema": msgspec.json.schema(kind)}
        for name, kind in endpoint.query.items()
    ]


def _openapi_path(path: str) -> str:
    return re.sub(r":\w+}", "}", path)


def _operation_id(endpoint: Endpoint, path: str) -> str:
    words = re.findall(r"\w+", _openapi_path(path))
    return "_".join([endpoint.method.lower(), *words])
