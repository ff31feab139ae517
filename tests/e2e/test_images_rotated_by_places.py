"""Images whose rows a model rotates by their places (Qwen VL), natively and on libllama: one answer, encoded once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stoker import LLM
from stoker.engine.config import EngineConfig
from tests.projector_files import picture, write_projector
from tests.tiny_models import SPECIAL, TinyModel, write_tiny_model

MARKERS = ("<|vision_start|>", "<|vision_end|>")
IMAGE = {"type": "image", "image": picture("red", (168, 112))}
QUESTION = "Look at this picture with care and say what is in it, in a few words, and name its color, too."
NUM_TOKENS = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    folder = tmp_path_factory.mktemp("places")
    vocab_size = 256 + len(SPECIAL) + 3 + len(MARKERS)
    tiny = TinyModel(architecture="qwen2vl", type="F32", control=MARKERS, vocab_size=vocab_size)
    model = write_tiny_model(folder / "m.gguf", tiny)
    projector = write_projector(folder / "mmproj.gguf", tiny.hidden_size, kind="qwen2vl_merger")
    return {"model": str(model), "mmproj": str(projector)}


def talk(llm: LLM, text: str) -> list[Any]:
    """The answers of two turns about an image, each with its cached tokens, and how often an image was encoded."""
    messages: list[Any] = [{"role": "user", "content": [IMAGE, {"type": "text", "text": text}]}]
    found: list[Any] = []
    for _ in range(2):
        reply = llm.chat(messages, temperature=0, max_tokens=NUM_TOKENS)
        found.append((reply.text, reply.usage.cached_tokens > 30))
        messages += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "And then?"}]
    assert llm._session._media is not None
    return [*found, llm._session._media.num_encoded]


def test_libllama_says_what_the_native_executor_says_and_encodes_once(files: Mapping[str, Any]):
    said: dict[str, list[Any]] = {}
    for backend in ("native", "llama"):
        with LLM(files["model"], mmproj=files["mmproj"], ctx_size=512, backend=backend, threads=1) as llm:
            said[backend] = talk(llm, QUESTION)
    assert said["native"] == said["llama"]
    assert [said["llama"][0][1], said["llama"][1][1], said["llama"][2]] == [False, True, 1]


@pytest.mark.parametrize("backend", ["native", "llama"])
def test_after_a_restart_with_a_cache_folder_nothing_is_encoded(files: Mapping[str, Any], backend: Any, tmp_path: Path):
    config = EngineConfig(**files, ctx_size=512, backend=backend, threads=1, kv_cache_dir=str(tmp_path / "cache"))
    talks: list[list[Any]] = []
    for _ in range(2):
        with LLM(config) as llm:
            talks.append(talk(llm, QUESTION))
    assert [each[2] for each in talks] == [1, 0]
    assert talks[1][0][1], "the first turn is there"
    assert [text for text, _ in talks[0][:2]] == [text for text, _ in talks[1][:2]]
