"""Selects the tools of an Anthropic request that the client runs, and detects blocks of tools that Anthropic runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from stoker.errors import UnsupportedParameter
from stoker.server.fields import note_ignored

_SEARCH = "tool_search_tool_"
_HOSTED = ("web_search_", "web_fetch_", "code_execution_", "advisor_", _SEARCH)
"""Prefixes of the types of tools that Anthropic's servers run."""
_HOSTED_CALLS = ("server_tool_use", "mcp_tool_use", "mcp_tool_listing", "fallback")


def own_tools(tools: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """The tools that the client runs, each with its path in the request.

    A tool that Anthropic's servers run is left out if the client offers its own tools, because the model need not call
    it. If Anthropic's tool search is left out, no tool is deferred, because the model could not find it.

    Raises:
        UnsupportedParameter: all tools run on Anthropic's servers.
    """
    placed = [(f"tools[{index}]", tool) for index, tool in enumerate(tools)]
    hosted = [(where, tool) for where, tool in placed if _kind(tool).startswith(_HOSTED)]
    own = [(where, tool) for where, tool in placed if not _kind(tool).startswith(_HOSTED)]
    if hosted and not own:
        raise not_available(hosted[0][1], hosted[0][0])
    for where, _ in hosted:
        note_ignored(where)
    if any(_kind(tool).startswith(_SEARCH) for _, tool in hosted):
        return [(where, {**tool, "defer_loading": False}) for where, tool in own]
    return own


def is_of_hosted_tool(block: object) -> bool:
    """Whether a block of an answer comes from Anthropic's servers instead of the model, such as a tool that they ran.

    Such blocks occur in conversations that began with Anthropic's models. The results are often encrypted, but the text
    of the answer tells what they were used for.
    """
    kind = str(cast("dict[str, object]", block).get("type")) if isinstance(block, dict) else ""
    return kind in _HOSTED_CALLS or kind.endswith("_tool_result")


def not_available(tool: Mapping[str, Any], where: str) -> UnsupportedParameter:
    """The error for a tool whose type is not supported."""
    known = "only those with an `input_schema`, and `bash`, text editors and `memory`"
    message = f"`{where}`: tools of type {_kind(tool)!r} are not available here, {known}"
    return UnsupportedParameter(message, parameter=f"{where}.type")


def _kind(tool: Mapping[str, Any]) -> str:
    return str(tool.get("type"))
