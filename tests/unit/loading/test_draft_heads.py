"""A file with a draft head, from the configuration to answers: the same ones, however right or wrong the head is."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from stoker.assembly import build_engine
from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Output, Submit
from stoker.errors import BackendError
from stoker.loading.choosing import measure
from tests.predictable_models import EXPERTS, predictable_with_head
from tests.tiny_models import TinyModel, write_tiny_model
from tests.unit.loading.test_draft_models import answers

HYBRID = TinyModel(architecture="qwen35", type="Q8_0", num_layers=3, num_draft_heads=1, has_head=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_model(folder / "hybrid.gguf", HYBRID)
    write_tiny_model(folder / "experts.gguf", EXPERTS)
    write_tiny_model(folder / "right.gguf", predictable_with_head())
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))


def config(folder: Path, name: str, **fields: object) -> EngineConfig:
    path = str(folder / f"{name}.gguf")
    sizes = EngineConfig(model_path=path, ctx_size=256, kv_tokens=512, threads=1, parallel=2, cache_ram=8)
    return msgspec.structs.replace(sizes, **fields)


@contextmanager
def opened(config: EngineConfig) -> Generator[Engine]:
    engine, _ = build_engine(config)
    yield engine
    engine.check_integrity()
    engine.close()


def make_passes_free(engine: Engine) -> None:
    """How long passes of models this small take says nothing."""
    speculation = engine._scheduler.speculation
    assert speculation.models is not None
    speculation.models.pass_s = lambda *_: 0.0  # type: ignore[method-assign]
    speculation._times.curve = lambda _, room: [1 + count / 1000 for count in range(room + 1)]  # type: ignore[method-assign]


@pytest.mark.parametrize("name", ["hybrid", "experts", "right"])
def test_a_head_changes_no_answer(folder: Path, name: str) -> None:
    with opened(config(folder, name)) as drafting, opened(config(folder, name, max_draft=0)) as plain:
        make_passes_free(drafting)
        assert answers(drafting) == answers(plain)
        stats = drafting.stats()
        assert stats.drafted_model_tokens > 10
        if name == "right":
            assert stats.accepted_model_tokens > 0.5 * stats.drafted_model_tokens


@pytest.mark.parametrize("fields", [{}, {"draft_model": "right"}], ids=["head", "model"])
def test_sampled_requests_are_drafted_for_with_their_own_random_numbers(folder: Path, fields: dict[str, str]) -> None:
    """A drafter with the very probabilities of the model draws what the model draws."""
    paths = {key: str(folder / f"{name}.gguf") for key, name in fields.items()}
    with opened(config(folder, "right", **paths)) as drafting, opened(config(folder, "right", max_draft=0)) as plain:
        make_passes_free(drafting)
        assert sampled(drafting) == sampled(plain)
        stats = drafting.stats()
        assert stats.drafted_model_tokens > 60
        assert stats.accepted_model_tokens > 0.9 * stats.drafted_model_tokens


def sampled(engine: Engine) -> list[int]:
    """A long answer at a temperature at which the most likely token is seldom the one that is drawn."""
    sampling = SamplingParams(temperature=3, top_k=200, seed=5, max_tokens=150, ignore_eos=True)
    engine.add(engine.admit(Submit("r", [97, 98, 99], sampling)))
    found: list[int] = []
    while engine.has_work:
        for event in engine.step():
            assert isinstance(event, Output)
            found += event.token_ids
    return found


def test_without_drafts_no_head_is_loaded(folder: Path) -> None:
    with opened(config(folder, "hybrid", max_draft=0)) as engine:
        assert engine._drafting is None


def test_the_memory_plan_counts_its_kv(folder: Path) -> None:
    with_head, without = measure(config(folder, "experts")), measure(config(folder, "experts", max_draft=0))
    assert with_head is not None
    assert without is not None
    assert with_head.kv_bytes_per_token == 1.5 * without.kv_bytes_per_token, "it has one layer, the model has two"


def test_a_head_that_fails_is_left_alone(folder: Path) -> None:
    def fail(*_: object) -> list[list[int]]:
        raise BackendError("no memory")

    with opened(config(folder, "right")) as drafting, opened(config(folder, "right", max_draft=0)) as plain:
        make_passes_free(drafting)
        drafting._drafting._port.draft = fail  # type: ignore[union-attr]
        assert answers(drafting) == answers(plain)
        assert drafting.stats().drafted_model_tokens == 0
