"""What the rooms are put together into, and what is refused before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stoker.assembly import build_engine, create_registry, local_model
from stoker.backends.scripted import ScriptedBackend
from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig, SupervisionConfig
from stoker.engine.protocol import Submit
from stoker.errors import ConfigError, ModelFileInvalid, ModelFileNotFound, ModelUnsupported
from stoker.server.config import ServerConfig


def test_the_card_says_what_was_built() -> None:
    config = EngineConfig(model="scripted", backend="scripted", ctx_size=128, kv_tokens=300, parallel=3, max_queue=5)
    engine, card = build_engine(config)
    engine.close()
    assert (card.name, card.backend, card.context_size, card.kv_tokens) == ("scripted", "scripted", 128, 300)
    assert (card.parallel, card.max_queue, card.bos_token, card.eos_token) == (3, 5, "<s>", "</s>")
    assert card.created > 1_600_000_000


def test_a_configured_default_reaches_the_request() -> None:
    sampling = SamplingParams(max_tokens=3, temperature=0)
    engine, _ = build_engine(EngineConfig(model="scripted", backend="scripted", sampling=sampling))
    stream = engine.admit(Submit("a", "x", SamplingParams(temperature=1)))
    engine.close()
    assert (stream.request.sampling.max_tokens, stream.request.sampling.temperature) == (3, 1)


def test_a_name_may_be_given() -> None:
    engine, card = build_engine(EngineConfig(model="scripted", backend="scripted", name="mine"))
    engine.close()
    assert card.name == "mine"


def test_a_backend_that_is_not_there_is_refused_before_any_download() -> None:
    config = EngineConfig(model="smollm2", backend="onnx")
    for load in (build_engine, local_model):
        with pytest.raises(ModelUnsupported, match="`onnx` is not available in this version"):
            load(config)


def test_more_running_requests_than_slots_are_refused_and_the_model_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[ScriptedBackend] = []
    monkeypatch.setattr(ScriptedBackend, "close", lambda self: closed.append(self))
    monkeypatch.setattr("stoker.loading._SLOTS_PER_RUNNING", 0)
    with pytest.raises(ConfigError, match="--parallel 17 is too much: scripted can run at most 16"):
        build_engine(EngineConfig(model="scripted", backend="scripted", parallel=17))
    assert len(closed) == 1


@pytest.mark.parametrize("field", ["model", "model_path", "name"])
def test_what_is_no_unicode_cannot_be_served(field: str) -> None:
    config = msgspec.structs.replace(EngineConfig(model="scripted", backend="scripted"), **{field: "bad\udcff.gguf"})
    with pytest.raises(ConfigError, match="not valid UTF-8"):
        create_registry(config, ServerConfig(), SupervisionConfig())


def test_bad_files_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("no model")
    with pytest.raises(ModelFileInvalid):
        build_engine(EngineConfig(model=str(text)))
    with pytest.raises(ModelFileNotFound):
        build_engine(EngineConfig(model=str(tmp_path / "missing.gguf")))


def test_a_local_file_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.touch()
    assert local_model(EngineConfig(model=str(file))).model_path == str(file)
    assert local_model(EngineConfig(model="smollm2", model_path="/x")).model_path == "/x"


def test_retained_conversations_outnumber_running_ones(smollm2_path: Path) -> None:
    engine, card = build_engine(EngineConfig(model=str(smollm2_path), ctx_size=256, kv_tokens=512, parallel=2))
    try:
        assert engine._info.num_slots == 16
        assert (card.backend, card.architecture, card.context_size, card.kv_tokens) == ("native", "llama", 256, 512)
        assert card.eos_token == "<|im_end|>"
        assert card.num_parameters > 130_000_000
    finally:
        engine.close()


def test_the_registry_serves_the_model_under_all_its_names() -> None:
    config = EngineConfig(model="/models/tiny.gguf", name="tiny-1", backend="scripted")
    registry = create_registry(config, ServerConfig(strict_models=True), SupervisionConfig())
    (served,) = registry.models
    assert served.model_id == "tiny-1"
    assert registry.resolve("/models/tiny.gguf") is served
