"""A model file that drafts for another one, from the configuration to answers: the same ones, and clear refusals."""

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
from stoker.errors import ConfigError, ModelFileNotFound, ModelUnsupported, ResourceExhausted
from stoker.loading.choosing import measure
from stoker.loading.locating import local_model, with_local_draft
from tests.tiny_models import TinyModel, write_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    model = TinyModel(type="Q8_0", has_head=False)
    write_tiny_model(folder / "model.gguf", model)
    write_tiny_model(folder / "same.gguf", model)
    write_tiny_model(folder / "other.gguf", TinyModel(type="Q8_0", has_head=False, num_layers=1, seed=5))
    write_tiny_model(folder / "words.gguf", TinyModel(type="Q8_0", has_head=False, control=("<|extra|>",)))
    write_tiny_model(folder / "hybrid.gguf", TinyModel(architecture="qwen35", type="Q8_0", has_head=False))
    write_tiny_model(folder / "strange.gguf", TinyModel(keys={"rope.scaling.type": "nobody"}, has_head=False))
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").touch()
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))


def config(folder: Path, draft: str = "", **fields: object) -> EngineConfig:
    sizes = EngineConfig(
        model_path=str(folder / "model.gguf"), ctx_size=256, kv_tokens=512, threads=1, parallel=2, cache_ram=8
    )
    path = str(folder / draft) if draft else ""
    return msgspec.structs.replace(sizes, draft_model=path, **fields)


@contextmanager
def opened(config: EngineConfig) -> Generator[Engine]:
    engine, _ = build_engine(config)
    yield engine
    engine.check_integrity()
    engine.close()


def answers(engine: Engine) -> dict[str, list[int]]:
    """Of several streams, at once and one after the other."""
    found: dict[str, list[int]] = {}
    for number in range(8):
        sampling = SamplingParams(temperature=(number % 2) * 0.8, seed=number, max_tokens=50, ignore_eos=True)
        engine.add(engine.admit(Submit(f"{number}", [97 + number, 98, 99 + number] * 3, sampling)))
        while engine.has_work and (number > 3 or number == 0):
            for event in engine.step():
                assert isinstance(event, Output)
                found.setdefault(event.request_id, []).extend(event.token_ids)
    return found


@pytest.mark.parametrize("draft", ["same.gguf", "other.gguf"])
def test_a_model_that_drafts_changes_no_answer(folder: Path, draft: str) -> None:
    with opened(config(folder, draft)) as drafting, opened(config(folder, max_draft=0)) as plain:
        # How long passes of models this small take says nothing: drafted entries and passes are all but free.
        speculation = drafting._scheduler.speculation
        assert speculation.models is not None
        speculation.models.pass_s = lambda *_: 0.0  # type: ignore[method-assign]
        speculation._times.curve = lambda _, room: [1 + count / 1000 for count in range(room + 1)]  # type: ignore[method-assign]
        assert answers(drafting) == answers(plain)
        stats = drafting.stats()
        assert stats.drafted_model_tokens > 10
        assert stats.accepted_model_tokens > 10 or draft == "other.gguf"


def test_without_drafts_no_model_is_loaded_for_them(folder: Path) -> None:
    with opened(config(folder, "other.gguf", max_draft=0)) as engine:
        assert engine._drafting is None


def test_the_memory_plan_counts_its_weights_and_its_kv(folder: Path) -> None:
    alone, both = measure(config(folder)), measure(config(folder, "other.gguf"))
    assert alone is not None
    assert both is not None
    assert alone.weights_bytes < both.weights_bytes < 2 * alone.weights_bytes
    assert both.kv_bytes_per_token == 1.5 * alone.kv_bytes_per_token, "it has one layer, the other has two"
    assert both.compute_bytes > alone.compute_bytes
    with pytest.raises(ResourceExhausted, match=r"model\.gguf with other\.gguf needs"):
        both.within(alone.least_bytes)


@pytest.mark.parametrize(
    ("draft", "error", "message"),
    [
        ("words.gguf", ConfigError, "their vocabularies differ: token .* is .* in one and .* in the other"),
        ("hybrid.gguf", ConfigError, "recurrent layers cannot undo rejected tokens"),
        ("strange.gguf", ModelUnsupported, r"--draft-model strange\.gguf"),
        ("missing.gguf", ModelFileNotFound, r"--draft-model .*missing\.gguf"),
        ("onnx", ConfigError, "only a GGUF file can draft"),
    ],
)
def test_what_cannot_draft_is_refused(folder: Path, draft: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build_engine(config(folder, draft))


@pytest.mark.parametrize("fields", [{"backend": "llama"}, {"backend": "scripted", "model_path": ""}], ids=str)
def test_only_the_native_backend_has_one(folder: Path, fields: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="--draft-model is available on the native backend only"):
        build_engine(config(folder, "other.gguf", **fields))


def test_a_name_becomes_a_file(folder: Path) -> None:
    found = local_model(config(folder, "other.gguf"))
    assert found.draft_model == str(folder / "other.gguf")


def test_for_llama_server_a_missing_file_is_a_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = with_local_draft(config(folder, "missing.gguf"), is_required=False)
    assert found.draft_model == ""
    assert "there is no draft model" in caplog.text
