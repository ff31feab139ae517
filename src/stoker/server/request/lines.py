"""Bounds that end an answer at a line: before a line with too little indentation, or after a line when time is up.

Both bounds are llama-server's, for editors. The module knows text and a clock, and no engine.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from stoker.engine.protocol import Accepted, Output


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBounds:
    """At least one of the two is given."""

    min_indent: int = 0
    """A line that begins with fewer spaces and tabs is not written, be it empty. The first line may; 0 = all may."""
    max_s: float | None = None
    """Time after the first token at which the answer ends with its current line."""


async def bounded(
    stream: AsyncGenerator[Accepted | Output, None],
    bounds: LineBounds,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncGenerator[Accepted | Output, None]:
    """The outputs of one answer, of which the last one has the finish reason `length` if a bound ended it.

    It closes the stream that it reads.

    Args:
        stream: as a runtime gives it.
        bounds: where to end it.
        clock: seconds.
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
                    yield msgspec.structs.replace(item, text=item.text[:cut], finish_reason="length", stop_match=None)
                    return
            yield item


class _Indent:
    """Follows a text to the first of its lines that is indented too little."""

    def __init__(self, least: int) -> None:
        self._least = least
        self._width: int | None = None
        """Of the line's indentation so far; None = the line has more than that, or is the first one."""

    def push(self, text: str) -> int | None:
        """The next part of the text. Gives the place in it where it has to end; None = it goes on."""
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
