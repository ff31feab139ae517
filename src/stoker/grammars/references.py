"""Resolves references to the schemas of one document by `$ref`, `$id` and anchor. Does not interpret other keywords."""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias, TypeGuard
from urllib.parse import unquote, urldefrag, urljoin

from stoker.errors import GrammarTooComplex

Json: TypeAlias = Any
"""A JSON value as parsed by Python."""


def is_object(value: Json) -> TypeGuard[dict[str, Json]]:
    """Whether a value is a JSON object."""
    return isinstance(value, dict)


def is_list(value: Json) -> TypeGuard[list[Json]]:
    """Whether a value is a JSON array."""
    return isinstance(value, list)


MAX_DEPTH: Final = 64
"""Maximum depth of nested schemas."""
MAX_PROPERTIES: Final = 1_000
"""Maximum number of named properties of an object."""

_SINGLE: Final = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_LISTS: Final = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_MAPS: Final = ("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties")
_DRAFTS: Final = {"draft-04": 4, "draft-06": 6, "draft-07": 7, "2019-09": 2019, "2020-12": 2020}


@dataclass(frozen=True, eq=False)
class Node:
    """A schema and its place in the document. Nodes with the same content and the same base are equal."""

    schema: Json
    base: str
    """The base URI of the schema's references."""
    pointer: str
    """JSON pointer from the root of the document. A derived schema has the pointer of the original."""

    @cached_property
    def key(self) -> bytes:
        """Bytes that are the same for equal contents. Version 2 of `marshal` writes no references to objects."""
        try:
            return marshal.dumps((self.base, self.schema), 2)
        except ValueError:
            raise GrammarTooComplex(f"a value in the schema is nested too deeply, at `{self.pointer}`") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def keywords(self) -> dict[str, Json]:
        return self.schema if is_object(self.schema) else {}

    def derived(self, schema: Json) -> Node:
        """A node for a schema that is made of parts of this one."""
        return Node(schema, self.base, self.pointer)


def draft_of(schema: Json) -> int:
    """The number or year of the draft that a document names; the newest if it names no known draft."""
    name = schema.get("$schema") if is_object(schema) else None
    return next((draft for key, draft in _DRAFTS.items() if isinstance(name, str) and key in name), 2020)


class Document:
    """An index of the schemas of one document.

    Raises:
        GrammarTooComplex: the schemas are nested too deeply, or have too many properties.
    """

    def __init__(self, schema: Json) -> None:
        self.draft = draft_of(schema)
        self._id_key = "id" if self.draft == 4 else "$id"
        self._found: dict[str, Node] = {"": Node(schema, "", "")}
        self.root = Node(schema, self._base(schema, ""), "")
        self._index(self.root, 0)

    def child(self, node: Node, *path: str | int) -> Node:
        """The schema at a path of keys below a node."""
        schema, base, pointer = node.schema, node.base, node.pointer
        for key in path:
            schema = schema[key]
            base = self._base(schema, base)
            pointer += "/" + str(key).replace("~", "~0").replace("/", "~1")
        return Node(schema, base, pointer)

    def resolve(self, node: Node, reference: str) -> Node:
        """The target of a `$ref` in this node.

        Raises:
            LookupError: the document has no such schema. The message names the reason.
        """
        same = reference.startswith("#")
        uri, fragment = urldefrag(urldefrag(node.base)[0] + reference if same else urljoin(node.base, reference))
        if fragment and not fragment.startswith("/"):
            return self._known(f"{uri}#{fragment}")
        target = self._known(uri)
        for key in unquote(fragment).split("/")[1:]:
            target = self._step(target, key.replace("~1", "/").replace("~0", "~"), reference)
        if not isinstance(target.schema, (dict, bool)):
            raise LookupError(f"`{reference}` is not a schema")
        return target

    def _known(self, uri: str) -> Node:
        if uri not in self._found:
            raise LookupError(f"`{uri}` is not in this document; nothing is loaded from elsewhere")
        return self._found[uri]

    def _step(self, node: Node, key: str, reference: str) -> Node:
        if is_list(node.schema) and key.isdecimal() and int(key) < len(node.schema):
            return self.child(node, int(key))
        if is_object(node.schema) and key in node.schema:
            return self.child(node, key)
        raise LookupError(f"nothing is at `{reference}`")

    def _base(self, schema: Json, base: str) -> str:
        if not is_object(schema) or self._id_key not in schema or (self.draft <= 7 and "$ref" in schema):
            return base
        name = schema[self._id_key]
        return urldefrag(urljoin(base, name))[0] if isinstance(name, str) and not name.startswith("#") else base

    def _index(self, node: Node, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise GrammarTooComplex(f"the schema is nested over {MAX_DEPTH} levels deep, at `{node.pointer}`")
        keywords = node.keywords
        if is_object(properties := keywords.get("properties")) and len(properties) > MAX_PROPERTIES:
            raise GrammarTooComplex(f"an object has over {MAX_PROPERTIES} properties, at `{node.pointer or '/'}`")
        name = keywords.get(self._id_key)
        if isinstance(name, str) and not (self.draft <= 7 and "$ref" in keywords):
            self._found.setdefault(node.base if not name.startswith("#") else node.base + name, node)
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(keywords.get(key), str):
                self._found.setdefault(f"{node.base}#{keywords[key]}", node)
        for path in _places(keywords):
            self._index(self.child(node, *path), depth + 1)


def _places(keywords: dict[str, Json]) -> Iterator[tuple[str | int, ...]]:
    for key in keywords.keys() & {*_SINGLE, *_LISTS, *_MAPS}:
        value = keywords[key]
        if isinstance(value, (dict, bool)) and key in _SINGLE:
            yield (key,)
        elif is_list(value) and key in _LISTS:
            yield from ((key, index) for index in range(len(value)))
        elif is_object(value) and key in _MAPS:
            yield from ((key, name) for name in value)
