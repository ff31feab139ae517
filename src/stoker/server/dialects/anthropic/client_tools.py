"""The tools of an Anthropic request: which of them the client runs, and definitions of Anthropic's own client tools.

A request names such a tool (`bash`, text editors, memory) only by type and version; a local model needs the full
definition in its prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from stoker.errors import UnsupportedParameter
from stoker.server.fields import note_ignored

_PATH = {"type": "string", "description": "Path of the file or folder."}
_OLD = {"type": "string", "description": "Text to replace: it must be in the file exactly once."}
_NEW = {"type": "string", "description": "Text that comes in its place."}
_LINE = {"type": "integer", "description": "Number of the line after which the text is inserted; 0 = before the first."}
_RANGE = {"type": "array", "items": {"type": "integer"}, "description": "First and last line to view; -1 = the last."}
_TEXT = {"type": "string", "description": "Content of the new file."}

_EDITING = {
    "path": _PATH,
    "view_range": _RANGE,
    "file_text": _TEXT,
    "old_str": _OLD,
    "new_str": _NEW,
    "insert_line": _LINE,
    "insert_text": {"type": "string", "description": "Text to insert."},
}


def _commands(names: list[str], properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    command = {"type": "string", "enum": names}
    return {"type": "object", "properties": {"command": command, **properties}, "required": ["command", *required]}


_BASH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "The command to run."},
        "restart": {"type": "boolean", "description": "True: restart the shell instead."},
    },
}
_EDITOR = _commands(["view", "create", "str_replace", "insert"], _EDITING, ["path"])
_UNDOING_EDITOR = _commands(["view", "create", "str_replace", "insert", "undo_edit"], _EDITING, ["path"])
_MEMORY = _commands(
    ["view", "create", "str_replace", "insert", "delete", "rename"],
    {**_EDITING, "old_path": _PATH, "new_path": {"type": "string", "description": "Its path afterwards."}},
    [],
)

_ABOUT_BASH = "Runs a command in a bash session that stays open between calls."
_ABOUT_EDITOR = "Views, creates and edits text files."
_ABOUT_MEMORY = "Views, creates, edits, deletes and renames files in /memories, which outlives conversations."

CLIENT_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "bash_20241022": (_ABOUT_BASH, _BASH),
    "bash_20250124": (_ABOUT_BASH, _BASH),
    "text_editor_20241022": (_ABOUT_EDITOR, _UNDOING_EDITOR),
    "text_editor_20250124": (_ABOUT_EDITOR, _UNDOING_EDITOR),
    "text_editor_20250429": (_ABOUT_EDITOR, _EDITOR),
    "text_editor_20250728": (_ABOUT_EDITOR, _EDITOR),
    "memory_20250818": (_ABOUT_MEMORY, _MEMORY),
}
"""Description and input schema of each tool, by type."""


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
