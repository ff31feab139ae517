"""Thoughts and answer, as they come. The thoughts have at most 500 tokens.

python examples/reasoning.py MODEL QUESTION
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from stoker import LLM, Content, Reasoning


def think(llm: LLM, question: str, write: Callable[[str], object]) -> None:
    """Writes the thoughts in brackets, and then the answer."""
    is_thinking = False
    for event in llm.stream_chat(question, reasoning=500).events():
        if isinstance(event, Reasoning | Content) and isinstance(event, Reasoning) != is_thinking:
            is_thinking = not is_thinking
            write("[" if is_thinking else "]\n")
        if isinstance(event, Reasoning | Content):
            write(event.text)
    write("\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/reasoning.py MODEL QUESTION")
    model, question = sys.argv[1:]
    with LLM(model) as llm:
        think(llm, question, lambda text: print(text, end="", flush=True))
