"""Reads the strings of a JSON value while its text arrives in pieces."""

from __future__ import annotations

from typing import NamedTuple

from stoker.text.chat_formats.custom import CHARACTERS, decoded


class StringPiece(NamedTuple):
    """A part of a string in a JSON value."""

    path: tuple[str | int, ...]
    """Keys and indexes that lead to the string."""
    text: str
    """The text that this piece adds."""
    is_end: bool
    """The string ends with this piece."""


class JSONStrings:
    """Splits the text of a JSON value into pieces of its strings. Text that is not JSON leads to any pieces."""

    def __init__(self) -> None:
        self._held = ""
        self._path: list[str | int] = []
        """Key or index of the current member, for each object and array that is open."""
        self._is_in_string = False
        self._expects_key = False

    def push(self, text: str) -> list[StringPiece]:
        """Takes the next piece of the JSON text; returns what it adds to strings, without the keys of objects."""
        self._held += text
        pieces: list[StringPiece] = []
        position = 0
        while position < len(self._held):
            if not self._is_in_string:
                self._read(self._held[position])
                position += 1
                continue
            found = CHARACTERS.match(self._held, position)
            assert found is not None
            position = found.end()
            is_end = self._held.startswith('"', position)
            self._read_string(decoded(found[0]), is_end, pieces)
            if not is_end:
                break  # before the rest of an escape sequence
            position += 1
        self._held = self._held[position:]
        return pieces

    def _read(self, char: str) -> None:
        match char:
            case '"':
                self._is_in_string = True
                if self._expects_key:
                    self._path[-1] = ""
            case "{" | "[":
                self._path.append("" if char == "{" else 0)
                self._expects_key = char == "{"
            case "}" | "]":
                del self._path[-1:]
                self._expects_key = False
            case ",":
                last = self._path[-1] if self._path else ""
                self._expects_key = isinstance(last, str) and bool(self._path)
                if isinstance(last, int):
                    self._path[-1] = last + 1
            case _:
                pass

    def _read_string(self, text: str, is_end: bool, pieces: list[StringPiece]) -> None:
        self._is_in_string = not is_end
        if self._expects_key:
            self._path[-1] = f"{self._path[-1]}{text}"
            self._expects_key = not is_end
        elif text or is_end:
            pieces.append(StringPiece((*self._path,), text, is_end))
