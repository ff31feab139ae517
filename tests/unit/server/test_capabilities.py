"""What a model can do, as each dialect says it before anybody asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.chat.capabilities import card_capabilities
from stoker.engine.cards import ModelCard
from stoker.text.chat_template import CHATML
from tests.unit.models.tiny_gguf import SHAPE, write_tiny_gguf
from tests.unit.server.fake_runtime import CARD, FakeRuntime, ask, make_app

QWEN = Path("tests/golden/chat_templates/qwen3.jinja").read_text()


def card_with(template: str | None, **fields: Any) -> ModelCard:
    return msgspec.structs.replace(CARD, chat_template=template, fill_tokens=None, **fields)


def get(card: ModelCard, method: str, path: str, body: Any = None) -> Any:
    runtime = FakeRuntime()
    runtime.model_card = card
    return ask(make_app(runtime), method, path, json=body).json()


@pytest.mark.parametrize(
    ("card", "names", "tool_format"),
    [
        (card_with(QWEN), ["completion", "tools", "thinking"], "hermes"),
        (card_with(QWEN, tool_format="none"), ["completion", "thinking"], "none"),
        (card_with(QWEN, tool_format="mistral3"), ["completion", "tools", "thinking"], "mistral3"),
        (card_with(CHATML), ["completion", "tools"], "generic"),
        (card_with(QWEN, media=["image", "audio"]), ["completion", "vision", "audio", "tools", "thinking"], "hermes"),
        (card_with(None, media=["image"]), ["completion", "vision"], None),
        (card_with(None), ["completion"], None),
        (card_with("{% broken"), ["completion"], None),
        (card_with(None, can_generate=False), ["embedding"], None),
    ],
)
def test_every_dialect_says_the_same(card: ModelCard, names: list[str], tool_format: str | None) -> None:
    props = get(card, "GET", "/props")
    (entry,) = get(card, "GET", "/v1/models")["data"]
    for said in (props, entry, get(card, "GET", "/v1/models/tiny")):
        assert said["capabilities"] == names
        assert (said["tool_format"] or {"name": None})["name"] == tool_format
    assert get(card, "POST", "/api/show", {"model": "tiny"})["capabilities"] == names
    (tag,) = (tag for tag in get(card, "GET", "/api/tags")["models"] if tag["name"] == "tiny:latest")
    assert tag["capabilities"] == names


def test_props_say_what_the_template_writes() -> None:
    props = get(card_with(QWEN), "GET", "/props")
    assert props["chat_template_caps"] == {
        "supports_tools": True,
        "supports_tool_calls": True,
        "supports_parallel_tool_calls": True,
    }
    tool_format = props["tool_format"]
    assert tool_format["reason"] == "reads what the chat template writes"
    assert tool_format["can_disable_thinking"]
    assert not any(get(card_with(CHATML), "GET", "/props")["chat_template_caps"].values())


def test_a_file_that_is_not_loaded_says_it_too(tmp_path: Path) -> None:
    from stoker.server.dialects.ollama.model_replies import show_file, tag_entry

    path = write_tiny_gguf(tmp_path / "tiny.gguf", **SHAPE, tokenizer__chat_template=QWEN)
    entry = tag_entry("tiny", path, 1)
    assert entry is not None
    assert list(entry.capabilities) == list(show_file(path, verbose=False).capabilities)
    assert {"tools", "thinking"} <= {*entry.capabilities}


_TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
_EFFORT = "Reasoning: {{ reasoning_effort or 'medium' }}\n" + _TURNS + "<think>\n"
_ALWAYS = _TURNS + "{% if add_generation_prompt %}<think>\n{% endif %}"
_OFF = _TURNS + "{% if add_generation_prompt and enable_thinking %}<think>\n{% endif %}"


@pytest.mark.parametrize(
    ("template", "thinking"),
    [
        (QWEN, {"values": [False, True], "default": True}),
        (_OFF, {"values": [False, True], "default": False}),
        (_ALWAYS, {"values": [True], "default": True}),
        (_EFFORT, {"values": ["low", "medium", "high"], "default": "medium"}),
        (CHATML, None),
    ],
)
def test_ollama_says_how_a_model_may_think(template: str, thinking: Any, tmp_path: Path) -> None:
    from stoker.server.dialects.ollama.model_replies import show_file

    shown = get(card_with(template), "POST", "/api/show", {"model": "tiny"})
    path = write_tiny_gguf(tmp_path / "tiny.gguf", **SHAPE, tokenizer__chat_template=template)
    of_file = msgspec.json.decode(msgspec.json.encode(show_file(path, verbose=False)))
    assert [reply.get("thinking") for reply in (shown, of_file)] == [thinking, thinking]


def test_a_template_is_run_once() -> None:
    assert card_capabilities(card_with(QWEN)) is card_capabilities(card_with(QWEN))
