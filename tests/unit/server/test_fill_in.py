"""Filling in the middle, from a GGUF file that has the tokens for it to the entries that the model is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.assembly import build_engine
from stoker.engine.cards import ModelCard
from stoker.engine.config import EngineConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Output, Submit
from tests.tiny_models import SPECIAL, TinyModel, write_tiny_model
from tests.unit.server.fake_runtime import FakeRuntime, ask, make_app

FILLING = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
PREFIX, SUFFIX, MIDDLE, REPOSITORY, SEPARATOR = range(256 + len(SPECIAL), 256 + len(SPECIAL) + len(FILLING))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Engine, ModelCard]]:
    tiny = TinyModel(control=FILLING, vocab_size=256 + len(SPECIAL) + len(FILLING) + 2)
    path = write_tiny_model(tmp_path_factory.mktemp("fill") / "m.gguf", tiny)
    engine, card = build_engine(
        EngineConfig(model_path=str(path), name="filler", backend="native", kv_tokens=512, threads=1)
    )
    yield engine, card
    engine.close()


class Filler(FakeRuntime):
    def __init__(self, card: ModelCard) -> None:
        super().__init__()
        self._own = card

    @property
    def card(self) -> ModelCard:
        return self._own


def submitted(card: ModelCard, path: str, body: dict[str, Any]) -> Submit:
    runtime = Filler(card)
    assert ask(make_app(runtime), "POST", path, json=body).status_code == 200
    (submit,) = runtime.submits
    return submit


def text(*parts: str) -> list[int]:
    """Token `n` of the vocabulary is byte `n`."""
    return [byte for part in parts for byte in part.encode()]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "def f(", "suffix": "): <|fim_middle|>", "max_tokens": 4}),
        ("/api/generate", {"model": "tiny", "prompt": "def f(", "suffix": "): <|fim_middle|>", "stream": False}),
        ("/infill", {"input_prefix": "def f(", "input_suffix": "): <|fim_middle|>", "n_predict": 4}),
    ],
)
def test_the_texts_stand_where_the_model_was_taught_and_spell_no_token(
    model: tuple[Engine, ModelCard], path: str, body: dict[str, Any]
):
    engine, card = model
    submit = submitted(card, path, body)
    entries = list(engine.admit(submit).request.prompt)
    expected = [PREFIX, *text("def f("), SUFFIX, *text("): <|fim_middle|>"), MIDDLE]
    assert entries == expected


def test_other_files_come_first_with_their_names(model: tuple[Engine, ModelCard]):
    engine, card = model
    extra = [{"filename": "a.py", "text": "A"}, {"filename": "b.py", "text": "B"}]
    body = {"input_prefix": "x", "input_suffix": "y", "input_extra": extra, "prompt": "z"}
    entries = list(engine.admit(submitted(card, "/infill", body)).request.prompt)
    project = [REPOSITORY, *text("project\n"), SEPARATOR, *text("a.py\n", "A\n"), SEPARATOR, *text("b.py\n", "B\n")]
    assert entries == [*project, PREFIX, *text("x"), SUFFIX, *text("y"), MIDDLE, *text("z")]


def test_it_is_computed(model: tuple[Engine, ModelCard]):
    engine, card = model
    body = {"prompt": "a", "suffix": "b", "max_tokens": 3, "temperature": 0, "ignore_eos": True}
    submit = msgspec.structs.replace(submitted(card, "/v1/completions", body), request_id="computed")
    engine.add(engine.admit(submit))
    outputs: list[Output] = []
    while engine.has_work:
        outputs += [event for event in engine.step() if isinstance(event, Output)]
    assert outputs[-1].usage.completion_tokens == 3
    assert outputs[-1].finish_reason == "length"


def test_ollama_says_which_models_can(model: tuple[Engine, ModelCard], tmp_path: Path):
    _, card = model
    reply = ask(make_app(Filler(card)), "POST", "/api/show", json={"model": "tiny"}).json()
    assert reply["capabilities"] == ["completion", "insert"]
    plain = msgspec.structs.replace(card, path=str(write_tiny_model(tmp_path / "plain.gguf", TinyModel())))
    assert ask(make_app(Filler(plain)), "POST", "/api/show", json={"model": "tiny"}).json()["capabilities"] == [
        "completion"
    ]
