"""What the rooms are put together into, and what is refused before anything is loaded."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stoker import assembly
from stoker.assembly import build_engine
from stoker.backends import scripted
from stoker.backends.scripted import ScriptedBackend
from stoker.core.params import SamplingParams
from stoker.engine import process
from stoker.engine.config import EngineConfig
from stoker.engine.protocol import Submit
from stoker.engine.spare import IS_SPARE
from stoker.errors import ConfigError, ModelFileInvalid, ModelFileNotFound, ModelUnsupported
from stoker.loading.locating import local_model
from tests.tiny_models import TinyModel, write_tiny_model


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


def test_who_was_started_early_waits_for_its_orders_also_if_something_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(IS_SPARE, "1")
    monkeypatch.setattr(assembly, "_USUAL", ("stoker.not_built",))
    monkeypatch.setattr(process, "serve_engine", lambda *_: 7)
    assert assembly.main() == 7
    assert IS_SPARE not in os.environ


@pytest.mark.parametrize(
    "settings",
    [{"tool_format": "nobody's"}, {"chat_template_file": "/missing.jinja"}],
    ids=lambda settings: next(iter(settings)),
)
def test_what_was_opened_is_closed_when_a_setting_is_refused(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[ScriptedBackend] = []
    monkeypatch.setattr(ScriptedBackend, "close", lambda backend: closed.append(backend))
    with pytest.raises(ConfigError):
        build_engine(EngineConfig(model="scripted", backend="scripted", **settings))
    assert closed


def test_a_name_may_be_given() -> None:
    engine, card = build_engine(EngineConfig(model="scripted", backend="scripted", name="mine"))
    engine.close()
    assert card.name == "mine"


def test_a_backend_for_other_files_is_refused_before_any_download() -> None:
    config = EngineConfig(model="smollm2", backend="onnx")
    for load in (build_engine, local_model):
        with pytest.raises(ModelUnsupported, match="smollm2 is a GGUF file, and the backend `onnx`"):
            load(config)


def test_more_running_requests_than_slots_are_refused_and_the_model_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[ScriptedBackend] = []
    monkeypatch.setattr(ScriptedBackend, "close", lambda self: closed.append(self))
    monkeypatch.setattr("stoker.loading.loader._SLOTS_PER_RUNNING", 0)
    with pytest.raises(ConfigError, match="--parallel 17 is too high: scripted can run at most 16"):
        build_engine(EngineConfig(model="scripted", backend="scripted", parallel=17))
    assert len(closed) == 1


def test_drafts_are_refused_where_answers_would_depend_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    make_info = scripted.scripted_info
    changed = {"is_batch_invariant": False}
    monkeypatch.setattr("stoker.loading.scripted.scripted_info", lambda **sizes: replace(make_info(**sizes), **changed))
    with pytest.raises(
        ConfigError, match="--max-draft 4: speculative decoding is available on the native backend only"
    ):
        build_engine(EngineConfig(model="scripted", backend="scripted", max_draft=4))
    engine, _ = build_engine(EngineConfig(model="scripted", backend="scripted", max_draft=0))
    engine.close()


def test_bad_files_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("no model")
    with pytest.raises(ModelFileInvalid):
        build_engine(EngineConfig(model=str(text)))
    with pytest.raises(ModelFileNotFound):
        build_engine(EngineConfig(model=str(tmp_path / "missing.gguf")))


def test_retained_conversations_outnumber_running_ones(smollm2_path: Path) -> None:
    engine, card = build_engine(EngineConfig(model=str(smollm2_path), ctx_size=256, kv_tokens=512, parallel=2))
    try:
        assert engine._info.num_slots == 16
        assert (card.backend, card.architecture, card.context_size, card.kv_tokens) == ("native", "llama", 256, 512)
        assert card.eos_token == "<|im_end|>"
        assert card.num_parameters > 130_000_000
    finally:
        engine.close()


def test_context_beyond_that_of_the_training_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(context_length=256))
    for ctx_size in (256, 257):
        engine, _ = build_engine(EngineConfig(model="tiny", model_path=str(path), ctx_size=ctx_size, parallel=1))
        engine.close()
    (said,) = (record.message for record in caplog.records if "trained" in record.message)
    assert "the context size of 257 tokens exceeds the 256 that" in said
