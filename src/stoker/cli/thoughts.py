"""Shows what a model thinks before it answers: dimmed, on stderr, and only on a terminal. The answer goes elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stoker.cli.later import events

if TYPE_CHECKING:
    from stoker.llm import TextStream

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def spoken(stream: TextStream) -> Iterator[str]:
    """The text of the answer, piece by piece; thoughts that come before it are shown."""
    is_shown = sys.stderr.isatty()
    dim, plain = ("", "") if os.environ.get("NO_COLOR") else (_DIM, _PLAIN)
    is_thinking = False
    try:
        for part in stream.events():
            if isinstance(part, events.Reasoning) and is_shown:
                print(part.text if is_thinking else dim + part.text, end="", file=sys.stderr, flush=True)
                is_thinking = True
                continue
            if is_thinking:
                print(plain, file=sys.stderr, flush=True)
                is_thinking = False
            if isinstance(part, events.Content):
                yield part.text
    finally:
        if is_thinking:
            print(plain, file=sys.stderr, flush=True)
