"""A vLLM that was started for embeddings."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stoker.engine.config import EngineConfig
from stoker.engine.question_messages import AdapterChoice, Embed
from stoker.errors import (
    AdapterNotFound,
    BackendError,
    ContextLengthExceeded,
    InvalidInput,
    ModelUnsupported,
    UnsupportedParameter,
)
from stoker.runtime.vllm.model_folder import read_model_folder
from tests.unit.runtime.vllm.fake import Fake, answer, ask
from tests.unit.runtime.vllm.test_vllm_adapters import adapter
from tests.waiting import run


def folder_of(model: Path, target: Path, *architectures: str) -> Path:
    """The same model under other names of its classes."""
    shutil.copytree(model, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "architectures": architectures}))
    return target


@pytest.fixture
def embedder(fake: Fake, tmp_path: Path) -> Fake:
    return replace(fake, model=folder_of(fake.model, tmp_path / "embedder", "LlamaModel"))


def test_texts_become_tokens_here_and_rows_there(embedder: Fake):
    async def test() -> None:
        async with embedder.started() as runtime:
            assert not runtime.card.can_generate
            assert runtime.card.embedding is not None
            assert (runtime.card.embedding.size, runtime.card.embedding.pooling) == (4, "vllm")
            ids = embedder.tokens("abc")
            found = await runtime.ask(Embed(["abc", ids[:2]], norm=-1))
            assert found.rows().tolist() == [[3, ids[0], ids[2], 0], [2, ids[0], ids[1], 0]]
            assert found.num_tokens == [3, 2]
            unit = (await runtime.ask(Embed(["abc"], dimensions=2))).rows()
            assert unit.shape == (1, 2)
            assert np.allclose(np.linalg.norm(unit, axis=1), 1)

    run(test())
    body = embedder.asked("/v1/embeddings")[-1]["body"]
    assert (body["encoding_format"], body["use_activation"]) == ("float", False)
    command = embedder.asked()[0]["command"]
    assert command[command.index("--runner") + 1] == "pooling"
    assert "--pooler-config" not in command


def test_a_pooling_makes_an_embedder_of_any_model(fake: Fake):
    async def test() -> None:
        async with fake.started(pooling="mean") as runtime:
            assert runtime.card.embedding is not None
            assert runtime.card.embedding.pooling == "mean"

    run(test())
    command = fake.asked()[0]["command"]
    assert json.loads(command[command.index("--pooler-config") + 1]) == {"pooling_type": "MEAN"}


def test_what_an_embedder_cannot_do_is_told(embedder: Fake, tmp_path: Path):
    async def test() -> None:
        async with embedder.started(lora=[f"a={adapter(tmp_path / 'a')}"]) as runtime:
            with pytest.raises(InvalidInput, match="does not generate text"):
                await answer(runtime, ask())
            refused: list[tuple[Embed, type[Exception], str]] = [
                (Embed([]), InvalidInput, "`input` is empty"),
                (Embed(["a", ""]), InvalidInput, r"`input\[1\]` is empty"),
                (Embed([[10**6]]), InvalidInput, "1000000"),
                (Embed(["a"], query="b"), InvalidInput, "cannot rerank"),
                (Embed(["a"], dimensions=5), InvalidInput, "between 1 and 4"),
                (Embed(["a" * 129]), ContextLengthExceeded, r"`input\[0\]` has 129 tokens.*at most 128"),
                (Embed(["a"], adapters=[AdapterChoice(name="a")]), UnsupportedParameter, "without adapters"),
                (Embed(["a"], adapters=[AdapterChoice(name="b")]), AdapterNotFound, "there is a"),
            ]
            for embed, error, words in refused:
                with pytest.raises(error, match=words):
                    await runtime.ask(embed)
            assert (await runtime.ask(Embed(["a" * 129], truncates=True))).num_tokens == [128]
            embedder.plan(refusal=[500, "out of memory"])
            with pytest.raises(BackendError, match="vLLM: out of memory"):
                await runtime.ask(Embed(["a"]))

    run(test())


@pytest.mark.parametrize(
    ("architecture", "pooling"),
    [("LlamaForCausalLM", ""), ("Qwen2VLForConditionalGeneration", ""), ("BertModel", "vllm"), ("GPT2LMHeadModel", "")],
)
def test_the_name_of_the_architecture_says_what_a_model_is_for(
    model: Path, tmp_path: Path, architecture: str, pooling: str
):
    folder = folder_of(model, tmp_path / "model", architecture)
    assert read_model_folder(EngineConfig(model_path=str(folder))).pooling == pooling
    (folder / "modules.json").write_text("[]")
    assert read_model_folder(EngineConfig(model_path=str(folder))).pooling == "vllm"


def test_models_that_rank_are_refused(model: Path, tmp_path: Path):
    folder = folder_of(model, tmp_path / "model", "BertForSequenceClassification")
    with pytest.raises(ModelUnsupported, match="not rerank"):
        read_model_folder(EngineConfig(model_path=str(folder)))
