"""An image with the same projector, here and in llama-server: text, usage and cached tokens are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Server, serving
from tests.e2e.test_llama_server_runtime import computes_here as computes_here
from tests.projector_files import data_url, picture, write_projector
from tests.tiny_models import SPECIAL, TinyModel, write_tiny_model

MARKERS = {
    "mlp": (),
    "idefics3": ("\n\n", "<fake_token_around_image>", "<global-img>"),
    "gemma3": ("<start_of_image>", "<end_of_image>"),
    "qwen2vl_merger": ("<|vision_start|>", "<|vision_end|>"),
}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "gemma3": {"architecture": "gemma3", "keys": {"attention.sliding_window": 8}, "has_head": False},
    "qwen2vl_merger": {"architecture": "qwen2vl"},
}
NUM_TOKENS = 8


def said(server: Server, *parts: str | bytes) -> tuple[str, int, int]:
    """What a model says to texts and images: the text, the tokens of the prompt, and those that were cached."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": data_url(part)}}
        for part in parts
    ]
    body = {"model": "m", "temperature": 0, "max_tokens": NUM_TOKENS, "grammar": "root ::= [a-z]+"}
    asked = {**body, "messages": [{"role": "user", "content": content}]}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=asked, trust_env=False, timeout=300)
    assert reply.status_code == 200, reply.text
    usage = reply.json()["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return reply.json()["choices"][0]["message"]["content"], usage["prompt_tokens"], cached


@pytest.mark.slow
@pytest.mark.usefixtures("computes_here")
@pytest.mark.parametrize("kind", list(MARKERS))
def test_an_image_gives_the_same_text_and_usage_as_in_llama_server(kind: str, tmp_path: Path):
    vocab_size = 256 + len(SPECIAL) + 3 + len(MARKERS[kind])
    tiny = TinyModel(**{"type": "F32", "control": MARKERS[kind], "vocab_size": vocab_size, **SHAPES.get(kind, {})})
    model = write_tiny_model(tmp_path / "m.gguf", tiny)
    projector = write_projector(tmp_path / "mmproj.gguf", tiny.hidden_size, kind=kind)
    asked: Sequence[Sequence[str | bytes]] = (
        ("Look at", picture("red", (112, 84)), "and tell."),
        ("Look at", picture("red", (112, 84)), "again."),
        ("Look at", picture("blue", (112, 84)), "and tell."),
    )
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                serving(
                    *(str(model), "--runtime", runtime, "--mmproj", str(projector)),
                    *("--ctx-size", "1024", "--parallel", "1", "--threads", "1"),
                    log=tmp_path / runtime,
                )
            )
            for runtime in ("engine", "llama-server")
        ]
        texts = [[said(server, f"Say {what}thing.") for server in servers] for what in ("some", "any")]
        assert all(ours[:2] == theirs[:2] for ours, theirs in texts), "they agree on text alone"
        for parts in asked:
            ours, theirs = (said(server, *parts) for server in servers)
            assert ours[:2] == theirs[:2]
            if kind == "gemma3":  # llama-server has dropped what a window has left
                assert ours[2] >= theirs[2], (ours, theirs)
            else:
                assert ours[2] == theirs[2]
