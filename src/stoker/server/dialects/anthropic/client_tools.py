"""Definitions of Anthropic's built-in client tools: `bash`, text editors, memory. Clients run these tools.

A request names such a tool only by type and version; a local model needs the full definition in its prompt.
"""

from __future__ import annotations

from typing import Any

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
