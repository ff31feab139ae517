"""Converts the tools of a responses request to the shape of chat completions, which has no namespaces.

The model sees the function `read` of the namespace `files` as `files.read`; items of calls have the two names apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.server.dialects.responses.client_tools import client_function, named_choice
from stoker.server.dialects.responses.summaries import summary_in
from stoker.server.fields import note_ignored

_HOSTED = ("web_search", "image_generation", "tool_search")
"""Prefixes of the types of tools that OpenAI's servers run, and that agents offer besides their own tools."""
_HOSTED_ITEMS = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "tool_search_call",
        "tool_search_output",
        "program",
        "program_output",
        "compaction",
        "compaction_summary",
        "compaction_trigger",
    }
)
"""Types of the items that tools and summaries of OpenAI's servers leave in a conversation."""


def is_of_hosted_tool(item: Mapping[str, Any]) -> bool:
    """Whether an item of a conversation is the work of OpenAI's servers, and not a summary of this one.

    Such items occur in conversations that began with OpenAI's models. They have no results, or encrypted ones, but the
    text of the answer tells what they were used for.
    """
    return str(item.get("type")) in _HOSTED_ITEMS and summary_in(item) is None


def own_choice(choice: object, names: Mapping[str, str]) -> object:
    """The `tool_choice` of a request, without the tools that OpenAI's servers run in a list of allowed tools.

    Args:
        choice: the choice.
        names: see `named_choice`, whose errors are raised.
    """
    fields = cast("dict[str, Any]", choice) if isinstance(choice, dict) else {}
    if fields.get("type") != "allowed_tools" or not isinstance(fields.get("tools"), list):
        return named_choice(cast("object", choice), names)
    own = [tool for tool in cast("list[object]", fields["tools"]) if not _is_hosted_tool(tool)]
    return {**fields, "tools": [named_choice(tool, names) for tool in own]}


def _is_hosted_tool(tool: object) -> bool:
    return isinstance(tool, dict) and _is_hosted(cast("dict[str, Any]", tool))


def full_name(item: Mapping[str, Any]) -> Any:
    """The name by which the model knows the tool of a call: `namespace.name`, or the name alone."""
    name, namespace = item.get("name"), item.get("namespace")
    return f"{namespace}.{name}" if isinstance(namespace, str) and namespace and isinstance(name, str) else name


def namespace_of(item: Mapping[str, Any]) -> dict[str, str]:
    """An object with the `namespace` of a call, to be merged into another; empty if the call has no namespace."""
    namespace = item.get("namespace")
    return {"namespace": namespace} if isinstance(namespace, str) and namespace else {}


def parts_of_names(tools: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Maps the full name of each tool in a namespace to the namespace and the tool's own name."""
    groups = [(str(tool.get("name")), _members(tool)) for tool in tools if tool.get("type") == "namespace"]
    names = [(namespace, str(member.get("name"))) for namespace, members in groups for member in members]
    return {f"{namespace}.{name}": (namespace, name) for namespace, name in names}


def flat_tools(tools: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Functions, custom tools and client tools, in the shape of chat completions.

    A tool that OpenAI's servers run is left out if the client offers its own tools, because the model need not call it.

    Args:
        tools: the tools of the request.
        names: the model's names of its client tools, see `names_of_client_tools`.

    Raises:
        InvalidInput: a namespace or a client tool is malformed.
        UnsupportedParameter: a tool has another type, or all tools run on OpenAI's servers.
    """
    own = [_chat_tool(tool, where, names) for where, tool in _flat(tools) if not _is_hosted(tool)]
    for index, tool in enumerate(tools):
        if _is_hosted(tool):
            if not own:
                raise _not_available(tool, f"tools[{index}]")
            note_ignored(f"tools[{index}]")
    return own


def _flat(tools: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        if tool.get("type") != "namespace":
            yield where, tool
            continue
        name = tool.get("name")
        if not isinstance(name, str) or not isinstance(tool.get("tools"), list):
            raise InvalidInput(f"`{where}` must have a `name` and a list of `tools`", parameter=where)
        about = tool.get("description")
        for number, member in enumerate(_members(tool)):
            named = {**member, "name": full_name({**member, "namespace": name})}
            if about and number == 0:
                named["description"] = f"(Tools {name}.*: {about}) {member.get('description') or ''}".rstrip()
            yield f"{where}.tools[{number}]", named


def _members(namespace: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    members = namespace.get("tools")
    found = cast("list[object]", members) if isinstance(members, list) else []
    return [cast("Mapping[str, Any]", member) for member in found if isinstance(member, Mapping)]


def _chat_tool(tool: Mapping[str, Any], where: str, names: Mapping[str, str]) -> dict[str, Any]:
    """A tool in the shape of chat completions, which nest the function in an object."""
    kind = str(tool.get("type"))
    if kind == "custom":
        return dict(tool)
    if kind in names and "].tools[" not in where:
        return client_function(tool, names[kind], where)
    if kind != "function":
        raise _not_available(tool, where)
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _is_hosted(tool: Mapping[str, Any]) -> bool:
    return str(tool.get("type")).startswith(_HOSTED)


def _not_available(tool: Mapping[str, Any], where: str) -> UnsupportedParameter:
    kind = str(tool.get("type"))
    known = "only functions, custom tools, `shell`, `local_shell` and `apply_patch`"
    if kind.startswith("computer"):
        known = "because each local model counts the points of a screen in its own way: offer a function for it"
    message = f"`{where}`: tools of type {kind!r} are not available here, {known}"
    return UnsupportedParameter(message, parameter=f"{where}.type")
