"""Command lines that can be pasted, shown at the end of each help page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

EXAMPLES: Mapping[str, Sequence[str]] = {
    "run": (
        "stoker run smollm2                          chat on a terminal",
        'stoker run smollm2 "Name three colors."     one answer',
        'cat notes.txt | stoker run smollm2 "Summarize:"',
    ),
    "chat": (
        "stoker chat smollm2",
        'stoker chat smollm2 -s "Answer in one sentence." --temperature 0',
    ),
    "serve": (
        "stoker serve                                everything that was pulled, loaded on demand",
        "stoker serve smollm2 --port 8000",
        "stoker serve --models-dir ~/models --keep-alive 10m",
    ),
    "pull": ("stoker pull qwen3:4b", "stoker pull ORG/REPO:Q8_0"),
    "models": ("stoker models", "stoker models --all"),
    "search": ("stoker search qwen3 coder", "stoker search embeddings --limit 5"),
}
"""By command."""
