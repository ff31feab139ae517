"""Bounds that end an answer at a line: before a line with too little indentation, or after a line when time is up.

Both bounds are from llama-server, for code completion in editors. The module is independent of the engine.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from stoker.engine.protocol import Accepted, Output
from stoker.errors import InvalidInput
from stoker.server.request.fields import StreamedFields


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBounds:
    """Bounds that end an answer at a line; at least one of the two is set."""

    min_indent: int = 0
    """Minimum indentation in spaces and tabs: the answer ends before a line, even an empty one, that has less. The
    first line is exempt; 0 = no minimum."""
    max_s: float | None = None
    """Time after the first token at which the answer ends with its current line."""


async def bounded(
    stream: AsyncGenerator[Accepted | Output, None],
    bounds: LineBounds,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncGenerator[Accepted | Output, None]:
    """The outputs of one answer, cut at the bounds. If a bound ends the answer, the finish reason is `length`.

    Closes the stream that it reads.

    Args:
        stream: the stream of a runtime.
        bounds: the bounds that end the answer.
        clock: returns a time in seconds.
    """
    indent = _Indent(bounds.min_indent)
    first_s: float | None = None
    async with aclosing(stream):
        async for item in stream:
            if isinstance(item, Output) and item.progress is None:
                first_s = clock() if first_s is None else first_s
                cut = indent.push(item.text)
                is_late = bounds.max_s is not None and "\n" in item.text and clock() - first_s > bounds.max_s
                if cut is not None or (is_late and item.finish_reason is None):
                    marks = item.marks if cut is None else [mark for mark in item.marks if mark[0] <= cut]
                    yield msgspec.structs.replace(
                        item, text=item.text[:cut], marks=marks, finish_reason="length", stop_match=None
                    )
                    return
            yield item


def line_bounds(fields: StreamedFields) -> LineBounds | None:
    """The bounds that a request sets for its answers; None if it sets none.

    Raises:
        InvalidInput: `n_indent` is negative.
    """
    indent, max_ms = fields.n_indent or 0, fields.t_max_predict_ms or 0
    if indent < 0:
        raise InvalidInput(f"`n_indent` must be at least 0, not {indent}", parameter="n_indent")
    if not indent and max_ms <= 0:
        return None
    return LineBounds(min_indent=indent, max_s=max_ms / 1000 if max_ms > 0 else None)


class _Indent:
    """Finds the first line of a streamed text that has too little indentation."""

    def __init__(self, least: int) -> None:
        self._least = least
        self._width: int | None = None
        """Indentation of the line so far; None = the line has other characters already, or is the first one."""

    def push(self, text: str) -> int | None:
        """Takes the next part of the text, and returns the index at which the answer ends; None = it goes on."""
        if not self._least:
            return None
        for at, character in enumerate(text):
            if self._width is not None and character in " \t":
                self._width += 1
                continue
            if self._width is not None and self._width < self._least:
                return at
            self._width = 0 if character == "\n" else None
        return None
