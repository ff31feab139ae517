"""Shows the reasoning of a model: dimmed, on stderr, and only on a terminal. It does not write the answer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stoker.cli.later import events
from stoker.cli.prompt_progress import after_prompt

if TYPE_CHECKING:
    from stoker.llm import TextStream

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def spoken(stream: TextStream) -> Iterator[str]:
    """Yields the text of the answer, piece by piece. Reasoning is shown on stderr instead, if that is a terminal."""
    is_shown = sys.stderr.isatty()
    dim, plain = ("", "") if os.environ.get("NO_COLOR") else (_DIM, _PLAIN)
    is_thinking = False
    try:
        for part in after_prompt(stream, stream.events()):
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
