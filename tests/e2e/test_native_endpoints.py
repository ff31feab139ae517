"""llama-server's own endpoints and ours on a real server with a real model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

QUESTION = [{"role": "user", "content": "What is gravity?"}]
GREEDY: dict[str, Any] = {"temperature": 0, "n_predict": 8}


@pytest.fixture
def http(served_smollm2: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served_smollm2, trust_env=False, timeout=120) as client:
        yield client


def test_tokens_there_and_back(http: httpx.Client):
    text = "<|im_start|>Schöne Grüße 🙂"
    tokens = http.post("/tokenize", json={"content": text}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": tokens}).json() == {"content": text}
    plain = http.post("/tokenize", json={"content": text, "parse_special": False, "with_pieces": True}).json()["tokens"]
    assert len(plain) > len(tokens)
    raw = b"".join(bytes(t["piece"]) if isinstance(t["piece"], list) else t["piece"].encode() for t in plain)
    assert raw.decode() == text


def test_template_and_tokens_are_those_of_a_chat(http: httpx.Client):
    prompt = http.post("/apply-template", json={"messages": QUESTION}).json()["prompt"]
    assert "What is gravity?" in prompt
    tokens = http.post("/tokenize", json={"content": prompt, "add_special": True}).json()["tokens"]
    chat = http.post("/v1/chat/completions", json={"messages": QUESTION, "max_tokens": 8, "temperature": 0}).json()
    completion = http.post("/completion", json={"prompt": tokens, **GREEDY, "return_tokens": True}).json()
    assert chat["usage"]["prompt_tokens"] == completion["tokens_evaluated"] == len(tokens)
    assert completion["content"] == chat["choices"][0]["message"]["content"]
    assert (completion["stop_type"], len(completion["tokens"])) == ("limit", 8)


def test_model_without_the_tokens_says_that_it_cannot_fill_in(http: httpx.Client):
    response = http.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    filled = http.post("/api/generate", json={"model": "smollm2", "prompt": "a", "suffix": "b", "stream": False})
    assert (response.status_code, filled.status_code) in ((200, 200), (400, 400))
    can = "insert" in http.post("/api/show", json={"model": "smollm2"}).json()["capabilities"]
    assert can == (response.status_code == 200)


def test_slots_and_cache_show_and_forget_what_was_left(http: httpx.Client):
    http.post("/completion", json={"prompt": "a text to be left behind", **GREEDY})
    slots = http.get("/slots").json()
    assert not any(slot["is_processing"] for slot in slots)
    fullest = max(slots, key=lambda slot: slot["n_tokens"])
    erased = http.post(f"/slots/{fullest['id']}?action=erase").json()
    assert erased == {"id_slot": fullest["id"], "n_erased": fullest["n_tokens"]}
    http.delete("/cache")
    assert {slot["n_tokens"] for slot in http.get("/slots").json()} == {0}
    (cache,) = http.get("/cache").json()["models"]
    assert cache["kv_capacity"] > 0


def test_props(http: httpx.Client):
    props = http.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 8192
    assert "im_start" in props["chat_template"]
    assert props["eos_token"] == "<|im_end|>"
