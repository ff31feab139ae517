"""OpenAI's client tools, which the client runs: `shell`, `local_shell` and `apply_patch`.

A request names such a tool only by its type. The model sees a function whose arguments are the action (the operation)
of the call's item. In messages, a call has the type of its tool in `client_tool`, and the result of a call has its item
without the ids in `client_result`; `plain_messages` removes both, because chat templates print all that a message has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, cast

import msgspec
from msgspec import UNSET

from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.server.dialects.responses.client_tool_types import (
    ClientCall,
    ClientCallOutput,
    LocalShellAction,
    LocalShellCall,
    LocalShellCallOutput,
    Operation,
    PatchCall,
    PatchCallOutput,
    PatchOperation,
    ShellAction,
    ShellCall,
    ShellCallOutput,
    ShellOutput,
)
from stoker.server.dialects.responses.input_types import InputCallOutput, InputCustomCallOutput
from stoker.server.dialects.responses.summaries import SUMMARY
from stoker.text.messages import Json, Message

T = TypeVar("T")

_TIMEOUT = {"type": "integer", "minimum": 1, "description": "Time in milliseconds after which a command is stopped."}
_SHELL: dict[str, Any] = {
    "commands": {
        "type": "array",
        "items": {"type": "string"},
        "minItems": 1,
        "description": "Shell commands, each as it is typed in a terminal.",
    },
    "timeout_ms": _TIMEOUT,
    "max_output_length": {
        "type": "integer",
        "minimum": 1,
        "description": "Number of characters after which the output of a command is cut off.",
    },
}
_LOCAL_SHELL: dict[str, Any] = {
    "command": {
        "type": "array",
        "items": {"type": "string"},
        "minItems": 1,
        "description": 'A program and its arguments, such as ["bash", "-lc", "ls -l | head"].',
    },
    "working_directory": {"type": "string", "description": "Folder in which the command runs."},
    "env": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "Environment variables.",
    },
    "timeout_ms": _TIMEOUT,
}
_DIFF = (
    "For create_file: the lines of the new file, each with `+` before it. For update_file: one or more hunks. Each "
    "hunk starts with a line `@@`, or `@@ ` and a line of the file, such as `@@ def main():`, below which the change "
    "is. Then follow the lines of the file in and around the change: unchanged lines with a space before them, removed "
    "lines with `-`, and new lines with `+`. Keep three unchanged lines before and after a change. There are no line "
    "numbers and no `---` or `+++` lines. For delete_file: empty."
)
_APPLY_PATCH: dict[str, Any] = {
    "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
    "path": {"type": "string", "description": "Path of the file, relative to the folder of the project."},
    "diff": {"type": "string", "description": _DIFF},
}

_OPERATIONS: dict[str, Operation] = {"create_file": "create_file", "delete_file": "delete_file"}

_TOOLS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "shell": (
        "Runs shell commands on the user's computer, and returns what each printed and its exit code.",
        _SHELL,
        ["commands"],
    ),
    "local_shell": ("Runs a command on the user's computer, and returns what it printed.", _LOCAL_SHELL, ["command"]),
    "apply_patch": ("Creates, changes or deletes one file.", _APPLY_PATCH, ["type", "path", "diff"]),
}
"""Description, properties of the arguments, and the required ones, of each tool by type."""
ID_PREFIXES = {"shell": "sh", "local_shell": "lsh", "apply_patch": "apc"}
"""Prefixes of the ids of calls, by type of the tool."""
_RESULT_PREFIXES = {
    "custom_tool_call_output": "ctco",
    **{f"{kind}_call_output": f"{prefix}o" for kind, prefix in ID_PREFIXES.items()},
}
CALLS = frozenset(f"{kind}_call" for kind in _TOOLS)
RESULTS = frozenset(_RESULT_PREFIXES)
_CLIENT_TOOL, _CLIENT_RESULT = "client_tool", "client_result"


# Tools


def names_of_client_tools(tools: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The name by which the model knows each client tool of a request, by type.

    It is the type itself, unless a function or a custom tool of the request has this name.
    """
    named = (tool.get("name") for tool in tools if tool.get("type") in ("function", "custom"))
    taken = {name for name in named if isinstance(name, str)}
    return {kind: _free_name(kind, taken) for tool in tools if (kind := str(tool.get("type"))) in _TOOLS}


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_tool"
    return name


def client_function(tool: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """The function, in the shape of chat completions, that a client tool is for the model.

    Raises:
        InvalidInput: the environment is malformed.
        UnsupportedParameter: the tool is used in a way that only OpenAI's servers have.
    """
    callers: object = tool.get("allowed_callers")
    if not isinstance(callers, list | None):
        raise InvalidInput(f"`{where}.allowed_callers` must be a list", parameter=f"{where}.allowed_callers")
    if callers and "direct" not in callers:
        message = (
            f"`{where}`: programs that call tools run only on OpenAI's servers; the model itself may call this one"
        )
        raise UnsupportedParameter(message, parameter=f"{where}.allowed_callers")
    description, properties, required = _TOOLS[str(tool["type"])]
    if tool["type"] == "shell":
        description += _skills(tool.get("environment"), f"{where}.environment")
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


class _Skill(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    description: str
    path: str


class _Environment(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["local", "container_auto", "container_reference"]
    skills: list[Any] = []


def _skills(raw: object, where: str) -> str:
    """A list of the skills in the environment of a shell, for the description of the tool."""
    if raw is None:
        return ""
    environment = _converted(raw, _Environment, where)
    if environment.type != "local":
        message = f"`{where}`: containers run only on OpenAI's servers; with `local`, your client runs the commands"
        raise UnsupportedParameter(message, parameter=f"{where}.type")
    skills = _converted(environment.skills, list[_Skill], f"{where}.skills")
    lines = [f"- {skill.name} (in {skill.path}): {skill.description}" for skill in skills]
    about = "\nThere are instructions for some tasks. Read the file SKILL.md in the folder before such a task:"
    return "\n".join([about, *lines]) if lines else ""


def named_choice(choice: object, names: Mapping[str, str]) -> object:
    """A tool of `tool_choice`, or of a list of allowed tools, with a client tool as the function that the model sees.

    Raises:
        InvalidInput: the request does not offer the tool.
    """
    kind = str(cast("dict[str, object]", choice).get("type")) if isinstance(choice, dict) else ""
    if kind not in _TOOLS:
        return cast("object", choice)
    if kind not in names:
        raise InvalidInput(f"`tool_choice` names {kind!r}, which `tools` does not offer", parameter="tool_choice")
    return {"type": "function", "name": names[kind]}


# Calls and results: items to messages


def call_of_item(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The call of a chat message that an item, such as `shell_call`, is.

    Raises:
        InvalidInput: the item is malformed.
    """
    kind = str(item["type"]).removesuffix("_call")
    match kind:
        case "shell":
            arguments = _converted(item.get("action"), ShellAction, f"{where}.action").arguments
        case "local_shell":
            arguments = _converted(item.get("action"), LocalShellAction, f"{where}.action").arguments
        case _:
            operation = _converted(item.get("operation"), PatchOperation, f"{where}.operation")
            if operation.type != "delete_file" and operation.diff is UNSET:
                raise InvalidInput(f"`{where}.operation.diff` is missing", parameter=f"{where}.operation.diff")
            arguments = operation.arguments
    return client_call(kind, item.get("call_id"), arguments)


def client_call(kind: str, call_id: Any, arguments: dict[str, Json]) -> dict[str, Any]:
    """The call of a client tool in a chat message."""
    function = {"name": kind, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function, _CLIENT_TOOL: kind}


def result_of_item(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The chat message that an item such as `shell_call_output` is.

    Raises:
        InvalidInput: the item is malformed.
    """
    kind, content = str(item["type"]), cast("object", item.get("output"))
    call_id = item.get("call_id") or (item.get("id") if kind == "local_shell_call_output" else None)
    kept: dict[str, Any] = {"type": kind}
    if kind == "shell_call_output":
        shell = _converted({**item, "id": "", "call_id": ""}, ShellCallOutput, where)
        _check_exit_codes(shell.output, f"{where}.output")
        kept |= {"output": msgspec.to_builtins(shell.output), "max_output_length": shell.max_output_length}
        content = "\n".join(map(_printed, shell.output))
    elif kind == "apply_patch_call_output":
        patch = _converted({**item, "id": "", "call_id": ""}, PatchCallOutput, where)
        kept |= {"status": patch.status, "output": patch.output}
        content = f"{patch.status}: {patch.output}" if patch.output else patch.status
    return {"role": "tool", "tool_call_id": call_id, "content": content, _CLIENT_RESULT: kept}


def _check_exit_codes(outputs: Sequence[ShellOutput], where: str) -> None:
    """Raises InvalidInput if a command ended, and its exit code is missing: it could have failed."""
    for index, output in enumerate(outputs):
        if output.outcome.type == "exit" and output.outcome.exit_code is UNSET:
            path = f"{where}[{index}].outcome.exit_code"
            raise InvalidInput(f"`{path}` is missing", parameter=path)


def _printed(output: ShellOutput) -> str:
    """What a command printed, as a text for the model."""
    errors = f"[stderr]\n{output.stderr}" if output.stderr else ""
    end = "[timed out]" if output.outcome.type == "timeout" else f"[exit code {output.outcome.exit_code}]"
    return "\n".join([text.rstrip("\n") for text in (output.stdout, errors) if text] + [end])


def plain_messages(messages: Sequence[Message], names: Mapping[str, str]) -> list[Message]:
    """The messages for a chat template, which knows functions only, by one name: without namespaces and client tools.

    Summaries become plain messages, too.

    Args:
        messages: the messages.
        names: the model's names of the request's client tools, by type.
    """
    return [_plain(message, names) if message.tool_calls or message.extra else message for message in messages]


def _plain(message: Message, names: Mapping[str, str]) -> Message:
    calls = tuple(_plain_call(call, names) for call in message.tool_calls)
    extra = {name: value for name, value in message.extra.items() if name not in (_CLIENT_RESULT, SUMMARY)}
    return replace(message, tool_calls=calls, extra=extra)


def _plain_call(call: Mapping[str, Json], names: Mapping[str, str]) -> dict[str, Json]:
    plain = {name: value for name, value in call.items() if name not in ("namespace", _CLIENT_TOOL)}
    name, function = names.get(client_tool_of(call)), call.get("function")
    return (
        plain if name is None or not isinstance(function, dict) else {**plain, "function": {**function, "name": name}}
    )


# Messages to items


def client_tool_of(call: Mapping[str, Json]) -> str:
    """The type of the client tool that a message calls; empty for functions and custom tools."""
    kind = call.get(_CLIENT_TOOL)
    return kind if isinstance(kind, str) and kind in _TOOLS else ""


def call_of(item_id: str, call: Mapping[str, Json]) -> ClientCall:
    """The item of a message's call of a client tool."""
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, dict) else None
    known = arguments if isinstance(arguments, dict) else dict[str, Json]()
    return call_item(client_tool_of(call), item_id, str(call.get("id") or ""), known, "completed")


def call_item(kind: str, item_id: str, call_id: str, arguments: Mapping[str, Json], status: str) -> ClientCall:
    """The item of a call with arguments that a model wrote, which are not valid if no grammar constrained them."""
    place: dict[str, Any] = {"id": item_id, "call_id": call_id, "status": status}
    timeout_ms = _number(arguments.get("timeout_ms"))
    if kind == "shell":
        longest = _number(arguments.get("max_output_length"))
        commands = _texts(arguments.get("commands"))
        action = ShellAction(commands=commands, timeout_ms=timeout_ms, max_output_length=longest)
        return ShellCall(**place, action=action)
    if kind == "local_shell":
        env = arguments.get("env")
        run = LocalShellAction(
            command=_texts(arguments.get("command")),
            env={_text(name): _text(value) for name, value in env.items()} if isinstance(env, dict) else {},
            working_directory=_text(arguments.get("working_directory")) or UNSET,
            timeout_ms=UNSET if timeout_ms is None else timeout_ms,
            user=_text(arguments.get("user")) or UNSET,
        )
        return LocalShellCall(**place, action=run)
    change, path, diff = (_text(arguments.get(name)) for name in ("type", "path", "diff"))
    operation = _OPERATIONS.get(change, "update_file")
    patch = PatchOperation(type=operation, path=path, diff=UNSET if operation == "delete_file" else diff)
    return PatchCall(**place | ({"status": "in_progress"} if status == "incomplete" else {}), operation=patch)


def _texts(value: Json) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [_text(item) for item in values if isinstance(item, str)]


def _text(value: Json) -> str:
    """A string without lone surrogates, which a model can write as escape sequences."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _number(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def result_prefix(message: Message) -> str:
    """The prefix of the id of a tool message's item."""
    return _RESULT_PREFIXES.get(str(_kept(message).get("type")), "fco")


def result_item(item_id: str, message: Message) -> InputCallOutput | InputCustomCallOutput | ClientCallOutput:
    """The item of a tool message, of the type that the client sent."""
    kept = _kept(message)
    place = {"id": item_id, "call_id": message.tool_call_id or ""}
    match kept.get("type"):
        case "shell_call_output":
            return msgspec.convert({**kept, **place}, ShellCallOutput)
        case "apply_patch_call_output":
            return msgspec.convert({**kept, **place}, PatchCallOutput)
        case "local_shell_call_output":
            return LocalShellCallOutput(**place, output=message.text)
        case "custom_tool_call_output":
            return InputCustomCallOutput(**place, output=message.text)
        case _:
            return InputCallOutput(**place, output=message.text)


def _kept(message: Message) -> dict[str, Json]:
    kept = message.extra.get(_CLIENT_RESULT)
    return kept if isinstance(kept, dict) else {}


def _converted(value: object, kind: type[T], where: str) -> T:
    """A value of a request as a type; null means that a field was not given."""
    try:
        return msgspec.convert(_without_nulls(value), kind)
    except RecursionError:
        raise InvalidInput(f"`{where}` is nested too deep", parameter=where) from None
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        path = f"{where}{path.rstrip('`')}"
        raise InvalidInput(f"`{path}`: {text[:1].lower()}{text[1:]}", parameter=path) from None


def _without_nulls(value: object) -> object:
    if isinstance(value, list):
        return [_without_nulls(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        members = cast("dict[str, object]", value).items()
        return {name: _without_nulls(item) for name, item in members if item is not None}
    return value
