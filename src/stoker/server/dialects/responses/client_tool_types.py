"""The JSON types of calls of OpenAI's client tools, which the client runs: `shell`, `local_shell` and `apply_patch`."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from stoker.text.messages import Json

Operation: TypeAlias = Literal["create_file", "update_file", "delete_file"]


class ShellAction(msgspec.Struct, frozen=True, kw_only=True):
    """The commands of a call of `shell`."""

    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None
    """Maximum number of characters that the client returns."""

    @property
    def arguments(self) -> dict[str, Json]:
        """The action as the arguments of a function."""
        limits: dict[str, Json] = {"timeout_ms": self.timeout_ms, "max_output_length": self.max_output_length}
        return {"commands": [*self.commands], **_given(limits)}


class LocalShellAction(msgspec.Struct, frozen=True, kw_only=True):
    """The command of a call of `local_shell`."""

    command: list[str]
    """The program and its arguments."""
    env: dict[str, str] = {}
    working_directory: str | UnsetType = UNSET
    timeout_ms: int | UnsetType = UNSET
    user: str | UnsetType = UNSET
    type: Literal["exec"] = "exec"

    @property
    def arguments(self) -> dict[str, Json]:
        """The action as the arguments of a function."""
        options: dict[str, Json] = {
            "working_directory": self.working_directory or None,
            "env": dict[str, Json](self.env) or None,
            "timeout_ms": None if self.timeout_ms is UNSET else self.timeout_ms,
            "user": self.user or None,
        }
        return {"command": [*self.command], **_given(options)}


class PatchOperation(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one file in a call of `apply_patch`."""

    type: Operation
    path: str
    diff: str | UnsetType = UNSET
    """Lines of the file after a space, removed ones after `-` and new ones after `+`; absent in `delete_file`."""

    @property
    def arguments(self) -> dict[str, Json]:
        """The operation as the arguments of a function."""
        return {"type": self.type, "path": self.path, "diff": self.diff or ""}


class LocalEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """The client's computer."""

    type: str = "local"


class ShellCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="shell_call"):
    """Commands that the client runs."""

    id: str
    call_id: str
    action: ShellAction
    status: str
    environment: LocalEnvironment = LocalEnvironment()


class LocalShellCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="local_shell_call"):
    """A command that the client runs."""

    id: str
    call_id: str
    action: LocalShellAction
    status: str


class PatchCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="apply_patch_call"):
    """The change of a file that the client makes."""

    id: str
    call_id: str
    operation: PatchOperation
    status: str
    """`in_progress` or `completed`: there is no other value, so a call that was cut off stays `in_progress`."""


ClientCall: TypeAlias = ShellCall | LocalShellCall | PatchCall


class ShellOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended."""

    type: Literal["exit", "timeout"]
    exit_code: int | UnsetType = UNSET
    """Present if the command ended by itself."""


class ShellOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What a command printed."""

    stdout: str
    stderr: str
    outcome: ShellOutcome


class ShellCallOutput(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="shell_call_output"):
    """The results of a call of `shell`."""

    id: str
    call_id: str
    output: list[ShellOutput]
    max_output_length: int | None = None
    status: str = "completed"


class LocalShellCallOutput(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="local_shell_call_output"):
    """The result of a call of `local_shell`."""

    id: str
    call_id: str
    output: str
    status: str = "completed"


class PatchCallOutput(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="apply_patch_call_output"):
    """The result of a call of `apply_patch`."""

    id: str
    call_id: str
    status: Literal["completed", "failed"]
    output: str | None = None


ClientCallOutput: TypeAlias = ShellCallOutput | LocalShellCallOutput | PatchCallOutput


def _given(values: dict[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in values.items() if value is not None}
