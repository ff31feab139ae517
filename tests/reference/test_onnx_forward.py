"""Real models on ONNX Runtime: logits beside the native executor's, whatever form the graph has, and a real answer."""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest

from stoker import LLM, SamplingParams
from stoker.backends.onnx import OnnxBackend
from stoker.core.batch import Batch, Chunk, Truncate
from stoker.core.stages import no_mark
from stoker.engine.config import EngineConfig
from stoker.export import ExportOptions, export_model
from stoker.loading.choosing import load_model
from tests.reference.export_runs import divergence, unrounded
from tests.reference.native_runs import Rows, all_rows, open_native
from tests.reference.native_runs import step as native_step
from tests.reference.tokenizer_corpus import PROSE

pytestmark = pytest.mark.slow

MEAN_KL = 0.005
"""The native executor rounds its activations to 8 bits, which is nearly all of it; products of graphs keep 15."""
EXACT_KL = 1e-5
NUM_DECODED = 40
FORMS = {
    "in place": ExportOptions(context_size=1024),
    "in place, half": ExportOptions(context_size=1024, kv_type="f16"),
    "joined": ExportOptions(context_size=1024, attention="plain"),
}


class Model:
    """A GGUF file, what the native executor makes of a text, and a place for exports."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self.folder = folder
        self._expected: Rows | None = None

    def exported(self, form: str) -> Path:
        target = self.folder / form.replace(", ", "-").replace(" ", "-")
        if not target.exists():
            export_model(self.path, target, FORMS[form])
        return target

    def expected(self, token_ids: list[int]) -> Rows:
        if self._expected is None:
            with open_native(self.path, packed_directory=self.folder / "packed") as backend:
                self._expected = all_rows(backend, token_ids)
        return self._expected[: len(token_ids)]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(smollm2_path, tmp_path_factory.mktemp("smollm2"))


@pytest.fixture(scope="module")
def gemma3(gemma3_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(gemma3_path, tmp_path_factory.mktemp("gemma3"))


def step(backend: OnnxBackend, *chunks: Chunk) -> Rows:
    return backend.forward(Batch(0, chunks)).copy()


def computed(backend: OnnxBackend, token_ids: list[int]) -> Rows:
    """Rows of all positions: the prompt in chunks, its end token by token beside a shorter sequence."""
    size, first = 150, len(token_ids) - NUM_DECODED
    parts = [(at, tuple(token_ids[at : min(at + size, first)])) for at in range(0, first, size)]
    rows = [step(backend, Chunk(0, at, part, len(part))) for at, part in parts]
    step(backend, Chunk(5, 0, tuple(token_ids[:99])))
    rows += [
        step(backend, Chunk(5, 99 + at - first, (token_ids[at],)), Chunk(0, at, (token_ids[at],), 1))
        for at in range(first, len(token_ids))
    ]
    backend.forward(Batch(0, (), (Truncate(0, 0), Truncate(5, 0))))
    return np.concatenate(rows)


@pytest.mark.parametrize(
    ("name", "form", "num_tokens"),
    [
        ("smollm2", "in place", 300),
        ("smollm2", "in place, half", 300),
        ("smollm2", "joined", 300),
        ("gemma3", "in place", 100),
    ],
)
def test_logits_are_those_of_the_native_executor(
    name: str, form: str, num_tokens: int, request: pytest.FixtureRequest
) -> None:
    model: Model = request.getfixturevalue(name)
    config = EngineConfig(model_path=str(model.exported(form)), threads=1, kv_tokens=2000)
    found = load_model(config, None, no_mark)
    try:
        assert isinstance(found.backend, OnnxBackend)
        assert found.backend.is_in_place == form.startswith("in place")
        tokenizer = found.tokenizer
        front = [tokenizer.bos_token_id] if tokenizer.adds_bos and tokenizer.bos_token_id is not None else []
        text = "\n".join(topics[topic] for topic in sorted(topics))[:4000]
        token_ids = [*front, *tokenizer.encode(text)][:num_tokens]
        rows = computed(found.backend, token_ids)
    finally:
        found.backend.close()
    expected = model.expected(token_ids)
    assert divergence(expected, rows) <= MEAN_KL
    assert (expected.argmax(-1) == rows.argmax(-1)).mean() > 0.93


CHAT = (
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\nThe sky appears blue because of a "
    "phenomenon called Rayleigh scattering. When sunlight enters the atmosphere, it is scattered in all directions."
)


@pytest.mark.slow
def test_texts_of_other_kinds_are_as_near(smollm2: Model) -> None:
    found = load_model(
        EngineConfig(model_path=str(smollm2.exported("in place")), threads=1, kv_tokens=600), None, no_mark
    )
    try:
        assert isinstance(found.backend, OnnxBackend)
        exact = unrounded(smollm2.exported("in place"))
        with open_native(smollm2.path, packed_directory=smollm2.folder / "packed") as native:
            for text in ("\n".join(PROSE), CHAT, inspect.getsource(argparse)[:2000]):
                token_ids = found.tokenizer.encode(text)[:100]
                rows = step(found.backend, Chunk(0, 0, tuple(token_ids), len(token_ids)))
                assert divergence(exact.rows(token_ids), rows) <= EXACT_KL
                assert divergence(all_rows(native, token_ids), rows) <= MEAN_KL
                native_step(native, ops=[Truncate(0, 0)])
                found.backend.forward(Batch(0, (), (Truncate(0, 0),)))
    finally:
        found.backend.close()


def test_a_folder_answers_as_its_file_does(smollm2: Model) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=16)
    answers: list[str] = []
    for path in (smollm2.path, smollm2.exported("in place")):
        with LLM(str(path), threads=1, ctx_size=512) as llm:
            answers.append(llm.generate("1, 2, 3, 4, 5,", greedy).text)
            assert llm.card.chat_template
    assert answers[0] == answers[1]
    assert answers[0].startswith(" 6, 7, 8")
