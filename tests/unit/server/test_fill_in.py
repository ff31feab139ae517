"""Filling in the middle, from a GGUF file that has the tokens for it to the entries that the model is given."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.assembly import build_engine
from stoker.engine.cards import FillTokens, ModelCard
from stoker.engine.config import EngineConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Output, Submit
from stoker.server.request.infill import Gap, fitting_prompt
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


PROJECT = [REPOSITORY, *text("myproject\n")]
CURRENT = [SEPARATOR, *text("filename\n")]


def test_infill_says_which_file_it_is_in_and_spells_no_token(model: tuple[Engine, ModelCard]):
    engine, card = model
    body = {"input_prefix": "def f(", "input_suffix": "): <|fim_middle|>", "n_predict": 4}
    entries = list(engine.admit(submitted(card, "/infill", body)).request.prompt)
    gap = [PREFIX, *text("def f("), SUFFIX, *text("): <|fim_middle|>"), MIDDLE]
    assert entries == [*PROJECT, *CURRENT, *gap]


def test_other_files_come_first_with_their_names(model: tuple[Engine, ModelCard]):
    engine, card = model
    extra = [{"filename": "a.py", "text": "A\n"}, {"filename": "b.py", "text": "B"}, {"text": "C"}]
    body = {"input_prefix": "x", "input_suffix": "y", "input_extra": extra, "prompt": "z"}
    entries = list(engine.admit(submitted(card, "/infill", body)).request.prompt)
    files = [SEPARATOR, *text("a.py\n", "A\n"), SEPARATOR, *text("b.py\n", "B"), SEPARATOR, *text("tmp\n", "C")]
    assert entries == [*PROJECT, *files, *CURRENT, PREFIX, *text("x"), SUFFIX, *text("y"), MIDDLE, *text("z")]


def test_a_model_without_a_token_between_files_gets_snippets(model: tuple[Engine, ModelCard]):
    engine, card = model
    assert card.fill_tokens is not None
    plain = msgspec.structs.replace(card.fill_tokens, repository=None, separator=None)
    card = msgspec.structs.replace(card, fill_tokens=plain)
    extra = [{"filename": "a.py", "text": "A"}, {"filename": "b.py", "text": "B"}]
    body = {"input_prefix": "x", "input_suffix": "y", "input_extra": extra}
    entries = list(engine.admit(submitted(card, "/infill", body)).request.prompt)
    files = text("\n\n--- snippet ---\n\n", "A", "\n\n--- snippet ---\n\n", "B")
    assert entries == [*files, PREFIX, *text("x"), SUFFIX, *text("y"), MIDDLE]


def test_the_first_files_are_left_out_if_not_all_fit(model: tuple[Engine, ModelCard]):
    engine, card = model
    extra = [{"filename": name, "text": name * 100} for name in "abcdef"]
    body = {"input_prefix": "x", "input_suffix": "y", "input_extra": extra, "n_predict": 100}
    entries = list(engine.admit(submitted(card, "/infill", body)).request.prompt)
    files = [entry for name in "def" for entry in (SEPARATOR, *text(f"{name}\n", name * 100))]
    assert entries == [*PROJECT, *files, *CURRENT, PREFIX, *text("x"), SUFFIX, *text("y"), MIDDLE]


def test_what_is_near_the_gap_stays_if_nothing_else_fits(model: tuple[Engine, ModelCard]):
    engine, card = model
    before, behind = "".join(map(chr, range(65, 91))) * 40, "0123456789" * 40
    body = {
        "input_prefix": before,
        "input_suffix": behind,
        "input_extra": [{"text": "A"}],
        "prompt": "mid",
        "n_predict": 100,
    }
    entries = list(engine.admit(submitted(card, "/infill", body)).request.prompt)
    at, middle = entries.index(SUFFIX), entries.index(MIDDLE)
    prefix, suffix = bytes(entries[entries.index(PREFIX) + 1 : at]).decode(), bytes(entries[at + 1 : middle]).decode()
    assert entries[: entries.index(PREFIX)] == [*PROJECT, *CURRENT]
    assert bytes(entries[middle + 1 :]) == b"mid"
    assert before.endswith(prefix)
    assert behind.startswith(suffix)
    assert len(prefix) == pytest.approx(3 * len(suffix), abs=3)
    assert card.context_size - 100 - 10 <= len(entries) <= card.context_size - 100


def test_a_text_that_leaves_room_leaves_it_to_the_other(model: tuple[Engine, ModelCard]):
    engine, card = model
    body = {"input_prefix": "p" * 1000, "input_suffix": "s" * 10, "n_predict": 100}
    entries = list(engine.admit(submitted(card, "/infill", body)).request.prompt)
    assert entries.count(ord("s")) == 10
    assert card.context_size - 100 - 10 <= len(entries) <= card.context_size - 100


def test_a_prompt_that_is_cut_is_still_one_of_texts_and_gets_bos():
    async def tokenize(text: str) -> list[int]:
        return list(text.encode())

    gap = Gap(prefix="a" * 100, suffix="b" * 100, beginning="c", files=[])
    prompt = asyncio.run(fitting_prompt(FillTokens(prefix=1, suffix=2, middle=3), gap, 60, tokenize))
    assert any(isinstance(part, str) for part in prompt)
    assert [part for part in prompt if part] == [1, *text("a" * 24), 2, *text("b" * 8), 3, *text("c")]


def test_of_texts_beyond_all_measure_only_what_may_fit_is_tokenized():
    runtime = FakeRuntime()
    extra = [{"text": "x" * 500_000}, {"text": "y"}]
    body = {"input_prefix": "x" * 1_000_000, "input_suffix": "y" * 1_000_000, "input_extra": extra}
    assert ask(make_app(runtime), "POST", "/infill", json=body).status_code == 200
    assert max(len(given) for given, *_ in runtime.tokenized) < 200_000
    assert len(runtime.submits[0].prompt) < runtime.card.context_size


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
    plain = msgspec.structs.replace(
        card, fill_tokens=None, path=str(write_tiny_model(tmp_path / "plain.gguf", TinyModel()))
    )
    assert ask(make_app(Filler(plain)), "POST", "/api/show", json={"model": "tiny"}).json()["capabilities"] == [
        "completion"
    ]
