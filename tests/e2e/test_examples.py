"""The programs of `examples/` do what they say, against answers that a model of the `qwen3` family would write."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stoker import LLM, EngineConfig
from tests.e2e.conftest import serving

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).resolve().parents[2] / "examples"
TEMPLATE = Path("tests/golden/chat_templates/qwen3.jinja").resolve()
CALL = '<think>\nI ask.\n</think>\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
SCRIPT: list[Any] = [
    {"when": "21 °C", "text": "It is sunny in Paris."},
    {"when": "weather in Paris", "text": CALL},
    {"when": "review", "text": '{"product": "soup", "stars": 1, "is_recommended": false}'},
    {"when": "prime", "text": "<think>\n7 * 13 = 91.\n</think>\n\nNo."},
    "I do not know.",
]
QUESTION = "How is the weather in Paris?"


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("examples") / "script.json"
    path.write_text(json.dumps(SCRIPT))
    return path


@pytest.fixture(scope="module")
def url(script: Path) -> Iterator[str]:
    options = ("--script", str(script), "--chat-template-file", str(TEMPLATE))
    with serving("scripted", *options, log=script.with_name("log")) as server:
        yield server.url


@pytest.fixture(scope="module")
def llm(script: Path) -> Iterator[LLM]:
    with LLM(EngineConfig(model="scripted", script=str(script), chat_template_file=str(TEMPLATE))) as llm:
        yield llm


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", ["agent_openai", "agent_anthropic", "agent_pydantic_ai"])
def test_an_agent_calls_its_tool_and_answers(url: str, name: str) -> None:
    assert run(name, QUESTION, url) == "It is sunny in Paris."


def test_an_answer_is_an_object(url: str) -> None:
    assert (
        run("structured_output", "The soup was cold.", url) == "Review(product='soup', stars=1, is_recommended=False)"
    )


def test_an_agent_without_a_server(llm: LLM) -> None:
    assert module("agent_in_process").answer(llm, QUESTION) == "It is sunny in Paris."


def test_thoughts_come_before_the_answer(llm: LLM) -> None:
    written: list[str] = []
    module("reasoning").think(llm, "Is 91 prime?", written.append)
    assert "".join(written) == "[7 * 13 = 91.]\nNo.\n"


def test_every_example_is_listed() -> None:
    listed = (FOLDER / "README.md").read_text()
    assert all(f"({path.name})" in listed for path in FOLDER.glob("*.py"))
