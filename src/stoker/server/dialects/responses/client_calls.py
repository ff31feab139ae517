"""Turns the arguments of calls of client tools into items and events of a stream, while a model writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from msgspec import UNSET
from msgspec.structs import replace

from stoker.chat.answers import ToolCall
from stoker.server.dialects.responses.client_tool_types import ClientCall, PatchCall
from stoker.server.dialects.responses.client_tools import call_item
from stoker.server.dialects.responses.partial_json import JSONStrings, StringPiece
from stoker.server.dialects.responses.types import DiffDoneEvent, Event, OutputItemEvent, PieceEvent, ShellCommandEvent
from stoker.text.messages import Json


@dataclass(frozen=True, slots=True)
class Place:
    """The place of an item in a response and in its stream."""

    item_id: str
    index: int
    """Index of the item in the output."""
    number: Callable[[], int]
    """Returns the number of the next event."""


class CallStream:
    """Builds the item of one call. Its arguments are those of a function, and become an action or an operation.

    Clients run what an item contains, so a call that is cut off has only whole commands.

    Args:
        place: place of the item.
        call: the call, to which all arguments are added before `push`.
    """

    kind: ClassVar[str]
    """Type of the tool."""

    def __init__(self, place: Place, call: ToolCall) -> None:
        self.place = place
        self._call = call
        self._strings = JSONStrings()

    def begin(self) -> list[Event]:
        """The events at the beginning of the call."""
        return [self._added({})]

    def push(self, text: str) -> list[Event]:
        """The events of the next piece of the arguments."""
        return [event for piece in self._strings.push(text) for event in self._follow(piece)]

    def end(self) -> list[Event]:
        """The events at the end of the call, complete or not."""
        return [self._done()]

    def item(self, status: str) -> ClientCall | None:
        """The item as it is now; None if it has not begun."""
        arguments = self._arguments() if self._call.is_complete else self._partial()
        return call_item(self.kind, self.place.item_id, self._call.call_id, arguments, status)

    @property
    def last_status(self) -> str:
        """The status of the call at its end."""
        return "completed" if self._call.is_complete else "incomplete"

    def _follow(self, piece: StringPiece) -> list[Event]:
        return []

    def _partial(self) -> Mapping[str, Json]:
        """The arguments of a call that has not ended."""
        return {}

    def _arguments(self) -> Mapping[str, Json]:
        try:
            values: Json = json.loads(self._call.arguments, strict=False)
        except (ValueError, RecursionError):
            return self._partial()
        return values if isinstance(values, dict) else self._partial()

    def _added(self, arguments: Mapping[str, Json]) -> Event:
        item = call_item(self.kind, self.place.item_id, self._call.call_id, arguments, "in_progress")
        return self._item_event("response.output_item.added", item)

    def _done(self) -> Event:
        item = self.item(self.last_status)
        assert item is not None
        return self._item_event("response.output_item.done", item)

    def _item_event(self, kind: str, item: ClientCall) -> Event:
        number, index = self.place.number(), self.place.index
        return OutputItemEvent(type=kind, sequence_number=number, output_index=index, item=item)


class LocalShellStream(CallStream):
    """A call of `local_shell`."""

    kind = "local_shell"


class ShellStream(CallStream):
    """A call of `shell`."""

    kind = "shell"

    def __init__(self, place: Place, call: ToolCall) -> None:
        super().__init__(place, call)
        self._commands: list[Json] = []
        self._pieces: list[str] = []
        """Pieces of the command that is written."""

    def _follow(self, piece: StringPiece) -> list[Event]:
        match piece.path:
            case ("commands", int(index)):
                pass
            case _:
                return []
        events = [] if self._pieces else [self._event("added", index, command="")]
        self._pieces.append(piece.text)
        if piece.text:
            events.append(self._event("delta", index, delta=piece.text))
        if piece.is_end:
            command = "".join(self._pieces)
            self._commands.append(command)
            self._pieces.clear()
            events.append(self._event("done", index, command=command))
        return events

    def _event(self, what: str, command_index: int, **texts: str) -> Event:
        return ShellCommandEvent(
            type=f"response.shell_call_command.{what}",
            sequence_number=self.place.number(),
            output_index=self.place.index,
            command_index=command_index,
            **texts,
        )

    def _partial(self) -> Mapping[str, Json]:
        return {"commands": [*self._commands]}


class PatchStream(CallStream):
    """A call of `apply_patch`. The item begins when the type of the operation and the path are known."""

    kind = "apply_patch"

    def __init__(self, place: Place, call: ToolCall) -> None:
        super().__init__(place, call)
        self._texts: dict[str, list[str]] = {"type": [], "path": [], "diff": []}
        self._known: set[str] = set()
        """The arguments that are complete."""
        self._has_begun = False

    def begin(self) -> list[Event]:
        return []

    def end(self) -> list[Event]:
        if self.item("") is None:
            return []
        begun = [] if self._has_begun else self._begun()
        item = self.item(self.last_status)
        assert isinstance(item, PatchCall)
        if self._lacks_diff or not isinstance(item.operation.diff, str):
            return [*begun, self._done()]
        place, number = self.place, self.place.number()
        ended = DiffDoneEvent(
            sequence_number=number, item_id=place.item_id, output_index=place.index, diff=item.operation.diff
        )
        return [*begun, ended, self._done()]

    def item(self, status: str) -> ClientCall | None:
        item = super().item(status) if self._has_begun or self._call.is_complete else None
        is_cut_off = self._lacks_diff and status != "in_progress"
        return without_diff(item) if is_cut_off and isinstance(item, PatchCall) else item

    @property
    def _lacks_diff(self) -> bool:
        """The call is cut off before the end of its diff. A client could apply a part of a diff."""
        return not self._call.is_complete and "diff" not in self._known

    def _follow(self, piece: StringPiece) -> list[Event]:
        name = piece.path[0] if len(piece.path) == 1 else None
        if not isinstance(name, str) or name not in self._texts:
            return []
        self._texts[name].append(piece.text)
        if piece.is_end:
            self._known.add(name)
        if self._has_begun:
            return [self._delta(piece.text)] if name == "diff" and piece.text and self._has_diff else []
        return self._begun() if {"type", "path"} <= self._known else []

    def _begun(self) -> list[Event]:
        self._has_begun = True
        known = self._partial()
        added = self._added({**known, "diff": ""})
        return [added, self._delta(str(known["diff"]))] if known["diff"] and self._has_diff else [added]

    @property
    def _has_diff(self) -> bool:
        return "".join(self._texts["type"]) != "delete_file"

    def _delta(self, text: str) -> Event:
        return PieceEvent(
            type="response.apply_patch_call_operation_diff.delta",
            sequence_number=self.place.number(),
            item_id=self.place.item_id,
            output_index=self.place.index,
            delta=text,
        )

    def _partial(self) -> Mapping[str, Json]:
        return {name: "".join(pieces) for name, pieces in self._texts.items()}


def without_diff(item: PatchCall) -> PatchCall:
    """The call of `apply_patch` with an empty diff, if its operation has one."""
    if item.operation.diff is UNSET:
        return item
    return replace(item, operation=replace(item.operation, diff=""))


CALL_STREAMS: dict[str, type[CallStream]] = {
    stream.kind: stream for stream in (ShellStream, LocalShellStream, PatchStream)
}
"""By type of the tool."""
