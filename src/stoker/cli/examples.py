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
        "stoker chat smollm2 --continue",
    ),
    "serve": (
        "stoker serve                                everything that was pulled, loaded on demand",
        "stoker serve smollm2 --port 8000",
        "stoker serve --models-dir ~/models --keep-alive 10m",
    ),
    "pull": ("stoker pull qwen3:4b", "stoker pull ORG/REPO:Q8_0"),
    "models": ("stoker models", "stoker models --all"),
    "list": ("stoker list", "stoker list --url http://127.0.0.1:8080 --json"),
    "show": ("stoker show qwen3:4b", "stoker show smollm2 --template"),
    "create": (
        'stoker create pirate --from smollm2 -s "You are a pirate." --temperature 0.9',
        "stoker create mario --file ./Modelfile",
    ),
    "cp": ("stoker cp qwen3:4b gpt-4o",),
    "rm": ("stoker rm qwen3:4b",),
    "ps": ("stoker ps", "stoker ps --url http://server:8080"),
    "stop": ("stoker stop qwen3:4b",),
    "quantize": ("stoker quantize model-f16.gguf model-Q4_K_M.gguf Q4_K_M",),
    "search": ("stoker search qwen3 coder", "stoker search embeddings --limit 5"),
}
"""By command."""
