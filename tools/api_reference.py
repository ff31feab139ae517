"""`docs/reference/api.md`: every endpoint, and what becomes of every request field, from the tables of the code."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.server.api import Endpoint
from stoker.server.endpoints import ENDPOINTS
from stoker.server.fields import FieldPolicy, FieldTable, Honoured, Ignored, Refused

INTRO = """\
Every field that a client may send is honored, refused or ignored, and a test sends each of them. A refused field is an
error 400 with the code `unsupported_parameter`, unless its value asks for nothing (`null` always does). Ignored fields
change nothing about the answer. Fields that are not listed are ignored too. `null` means "not given" everywhere. The
types are in `GET /openapi.json` of a running server."""


def lines() -> Iterator[str]:
    """The page, line by line, without its note."""
    yield from ["# HTTP API", "", INTRO, "", "| endpoint | also | what |", "| --- | --- | --- |"]
    for endpoint in ENDPOINTS:
        aliases = ", ".join(f"`{alias}`" for alias in endpoint.aliases)
        yield f"| `{endpoint.method} {endpoint.path}` | {aliases} | {endpoint.api}: {endpoint.summary} |"
    yield ""
    for endpoint in ENDPOINTS:
        if endpoint.fields:
            yield from section(endpoint)


def section(endpoint: Endpoint) -> Iterator[str]:
    yield from [f"## `{endpoint.method} {endpoint.path}`", ""]
    yield from table(endpoint.fields)
    for name, fields in endpoint.nested.items():
        yield from [f"Inside of `{name}`:", ""]
        yield from table(fields)


def table(fields: FieldTable) -> Iterator[str]:
    honoured = sorted(name for name, policy in fields.items() if isinstance(policy, Honoured))
    yield from [f"Honored: {', '.join(f'`{name}`' for name in honoured)}.", ""]
    others = {name: policy for name, policy in fields.items() if not isinstance(policy, Honoured)}
    if others:
        yield from ["| field | | why |", "| --- | --- | --- |"]
        yield from (row(name, policy) for name, policy in sorted(others.items(), key=order))
        yield ""


def row(name: str, policy: FieldPolicy) -> str:
    assert isinstance(policy, Refused | Ignored)
    word = "refused" if isinstance(policy, Refused) else "ignored"
    return f"| `{name}` | {word} | {policy.reason} |"


def order(item: tuple[str, FieldPolicy]) -> tuple[bool, str]:
    return isinstance(item[1], Ignored), item[0]
