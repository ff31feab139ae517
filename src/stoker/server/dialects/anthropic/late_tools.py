"""Anthropic's `defer_loading`: tools that become available, or unavailable, in the course of a conversation.

The prompt begins with the list of tools. A tool that is added to the list later would change the prompt's beginning and
defeat the prefix cache. So the list stays unchanged, and the message that adds a tool contains its description.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from stoker.chat.tools import Tools
from stoker.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class _Placed:
    """A tool and its path in the request."""

    where: str
    fields: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.fields.get("name"))


class LateTools:
    """Tracks which tools are available while the messages of one request are read in order.

    Args:
        tools: tools of the request, each with its path there. A tool with `defer_loading` becomes available with the
            message that refers to it.
    """

    def __init__(self, tools: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        placed = [_Placed(where, tool) for where, tool in tools]
        self._listed = [tool for tool in placed if tool.fields.get("defer_loading") is not True]
        self._names = frozenset(tool.name for tool in self._listed)
        self._known = {tool.name: tool for tool in placed}
        self._come: dict[str, _Placed] = {}
        self._gone: set[str] = set()

    @property
    def available(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The tools of the list and those that messages added, each with its path in the request."""
        late = [tool for tool in self._come.values() if tool.name not in self._names]
        return [(tool.where, tool.fields) for tool in (*self._listed, *late)]

    def applied(self, tools: Tools) -> Tools:
        """The tools with late ones left out of the prompt's list, and with calls of removed ones not allowed."""
        unlisted = replace(tools, unlisted=frozenset(self._come) - self._names if self._listed else frozenset())
        if not self._gone:
            return unlisted
        allowed = frozenset(tools.callable if tools.allowed is None else tools.allowed)
        return replace(unlisted, allowed=allowed - self._gone)

    def described(self, message: dict[str, Any], where: str) -> dict[str, Any]:
        """A message in which texts replace the blocks that add or remove tools; notes these changes.

        Raises:
            InvalidInput: such a block is malformed.
        """
        content = message.get("content")
        if not isinstance(content, list):
            return message
        blocks = cast("list[object]", content)
        return {**message, "content": [self._block(block, f"{where}.content[{i}]") for i, block in enumerate(blocks)]}

    def _block(self, block: object, where: str) -> object:
        if not isinstance(block, dict):
            return block
        fields = cast("dict[str, Any]", block)
        match fields:
            case {"type": "tool_addition" | "tool_removal"}:
                return _text(self._change(fields, where))
            case {"type": "tool_result", "content": list()}:
                return {**fields, "content": list(self._parts(fields["content"]))}
            case _:
                return fields

    def _parts(self, parts: list[object]) -> Iterable[object]:
        for part in parts:
            match part:
                case {"type": "tool_reference", "tool_name": str(name)}:
                    yield _text(self._bring(name, self._known.get(name)))
                case _:
                    yield part

    def _change(self, block: Mapping[str, Any], where: str) -> str:
        match block:
            case {"type": "tool_removal", "tool": {"type": "tool_reference", "name": str(name)}}:
                self._gone.add(name)
                return _gone(name)
            case {"type": "tool_addition", "tool": {"type": "tool_reference", "name": str(name)}}:
                return self._bring(name, self._known.get(name))
            case {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": str(name)}}}:
                return self._bring(name, _Placed(f"{where}.tool.definition", block["tool"]["definition"]))
            case _:
                message = f"`{where}.tool` must be a reference to a tool, or what defines one"
                raise InvalidInput(message, parameter=f"{where}.tool")

    def _bring(self, name: str, tool: _Placed | None) -> str:
        if tool is None:  # the request no longer defines the tool
            return _gone(name)
        self._gone.discard(name)
        self._come[name] = tool
        description, parameters = tool.fields.get("description") or "", tool.fields.get("input_schema")
        about = {"description": description, "name": name, "parameters": parameters}
        return f"<functions>\n<function>{json.dumps(about, ensure_ascii=False)}</function>\n</functions>"


def _gone(name: str) -> str:
    return f"The tool {name} is not available."


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
