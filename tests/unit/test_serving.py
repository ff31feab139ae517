"""Which models a command line and a configuration file name, and what becomes of each."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any, NoReturn

import pytest

from stoker import serving
from stoker.config import Config, load_config
from stoker.engine import spare
from stoker.engine.client import EngineClient
from stoker.engine.config import EngineConfig, SupervisionConfig
from stoker.errors import ConfigError, ModelFileNotFound
from stoker.loading.choosing import measure
from stoker.models.aliases import add_alias
from stoker.models.cache import file_sha256, write_receipt
from stoker.models.memory_plan import MemoryNeeds
from stoker.models.presets import Preset, write_preset
from stoker.runtime.registry import ModelSpec, Registry
from stoker.runtime.replica_config import ReplicaConfig
from stoker.runtime.replicas import ReplicatedRuntime
from stoker.text.volatile import VolatileHeaders
from tests.onnx_models import write_onnx_folder
from tests.tiny_models import TinyModel, write_tiny_model
from tests.unit.models.tiny_gguf import write_tiny_gguf

MIB = 2**20


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of downloads."""
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def settings(tmp_path: Path, text: str = "", **flags: Any) -> Config:
    file = tmp_path / "stoker.toml"
    file.write_text(text)
    return load_config({"backend": "scripted", **flags}, file=file, environ={})


def registry_of(config: Config, *models: str) -> Registry:
    return serving.create_registry(config, models)


def spec_of(registry: Registry, name: str) -> ModelSpec:
    return registry.find(name).spec


def made(monkeypatch: pytest.MonkeyPatch) -> list[EngineConfig]:
    """What is passed on to whoever makes runtimes."""
    engines: list[EngineConfig] = []
    monkeypatch.setattr(serving, "create_runtime", lambda engine, *rest, **more: engines.append(engine))
    return engines


def test_one_model_under_all_its_names(tmp_path: Path) -> None:
    registry = registry_of(settings(tmp_path, name="tiny-1"), "/models/tiny.gguf")
    spec = spec_of(registry, "tiny-1")
    assert spec.names == ("tiny-1", "/models/tiny.gguf")
    assert registry.resolve("anything").model_id == "tiny-1"
    assert (spec.loads_at_start, spec.is_pinned, spec.keep_alive_s) == (True, False, inf)


def test_strict_server_knows_its_names_only(tmp_path: Path) -> None:
    registry = registry_of(settings(tmp_path, strict_models=True), "/models/tiny.gguf")
    assert registry.resolve("/models/tiny.gguf").model_id == "tiny"
    with pytest.raises(Exception, match="`other`"):
        registry.resolve("other")


def test_options_say_what_holds_for_which_model(tmp_path: Path) -> None:
    config = settings(tmp_path, alias=["chat=a", "gpt-4o=chat-b"], pin=["a"], keep_alive=["10m", "chat-b=-1"])
    registry = registry_of(config, "a", "chat-b")
    assert spec_of(registry, "chat").names == ("a", "chat")
    assert spec_of(registry, "gpt-4o").model_id == "chat-b"
    assert (spec_of(registry, "a").is_pinned, spec_of(registry, "a").keep_alive_s) == (True, 600)
    assert (spec_of(registry, "chat-b").is_pinned, spec_of(registry, "chat-b").keep_alive_s) == (False, inf)


def test_models_of_a_file_come_after_those_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
        [registry]
        models_max = 2
        [registry.models.fast]
        source = "/m/fast.gguf"
        alias = ["chat"]
        pin = true
        keep_alive = "1h"
        load = false
        engine = { ctx_size = 77, parallel = 2 }
        [registry.models.plain]
    """
    registry = registry_of(settings(tmp_path, text), "first")
    assert [status.model_id for status in registry.statuses()] == ["first", "fast", "plain"]
    fast = spec_of(registry, "chat")
    assert fast.names == ("fast", "/m/fast.gguf", "chat")
    assert (fast.is_pinned, fast.keep_alive_s, fast.loads_at_start) == (True, 3600, False)
    engines = made(monkeypatch)
    for name in ("fast", "plain"):
        spec_of(registry, name).make(None)
    assert [(engine.ctx_size, engine.parallel, engine.name) for engine in engines] == [
        (77, 2, "fast"),
        (None, 8, "plain"),
    ]


@pytest.mark.parametrize(
    ("models", "names"),
    [
        (["/m/a.gguf", "/n/a.gguf"], [("/m/a.gguf",), ("/n/a.gguf",)]),
        (["a", "/m/a.gguf"], [("a",), ("/m/a.gguf",)]),
        (["hf:x/a:m.gguf", "hf:y/b:m.gguf", "m.onnx"], [("hf:x/a:m.gguf",), ("hf:y/b:m.gguf",), ("m.onnx",)]),
        (["/m/a.gguf", "/n/b.gguf"], [("a", "/m/a.gguf"), ("b", "/n/b.gguf")]),
    ],
)
def test_files_of_one_name_are_called_by_their_paths(
    tmp_path: Path, models: Sequence[str], names: list[tuple[str, ...]]
) -> None:
    registry = registry_of(settings(tmp_path), *models)
    assert [status.spec.names for status in registry.statuses()] == names


@pytest.mark.parametrize(
    ("models", "flags", "complaint"),
    [
        (["a", "b"], {"name": "x"}, "--name is for one model; use --alias"),
        (["a", "b"], {"lora": ["x=x.gguf"]}, "--lora is for one model"),
        (["a", "b"], {"control_vector": ["x.gguf"]}, "--control-vector is for one model"),
        (["a", "b"], {"alias": ["a=b"]}, "'a' would be both a and b"),
        (["a"], {"alias": ["x"]}, "--alias takes NAME=MODEL"),
        (["a"], {"alias": ["x=b"]}, "there is no model 'b'"),
        (["a"], {"pin": ["b"]}, "there is no model 'b'"),
        (["a"], {"keep_alive": ["b=5m"]}, "there is no model 'b'"),
        (["a"], {"keep_alive": ["soon"]}, "--keep-alive: .*not 'soon'"),
        (["a"], {"models_dir": "/nowhere"}, "--models-dir: /nowhere is not a directory"),
        (["bad\udcff"], {}, "not valid UTF-8"),
        (["a", "a"], {}, "'a' is named twice"),
    ],
)
def test_what_cannot_be_meant(tmp_path: Path, models: Sequence[str], flags: Any, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        registry_of(settings(tmp_path, **flags), *models)


def test_without_a_model_all_pulled_ones_are_served(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = cache / "models" / "hf" / "org" / "repo" / "tiny-Q8_0.gguf"
    file.parent.mkdir(parents=True)
    write_tiny_gguf(file)
    write_receipt(file, "hf:org/repo:tiny-Q8_0.gguf", "a test", file, file_sha256(file))
    add_alias("mine", "hf:org/repo:tiny-Q8_0.gguf")
    write_preset("pirate", Preset(model="hf:org/repo", system="Say arr."))
    write_preset("away", Preset(model="qwen3:4b"))
    engines = made(monkeypatch)
    registry = registry_of(settings(tmp_path))
    asyncio.run(registry.refresh())
    assert [status.model_id for status in registry.statuses()] == ["hf:org/repo:tiny-Q8_0.gguf", "pirate"]
    spec = spec_of(registry, "tiny-Q8_0")
    assert (spec.loads_at_start, spec.keep_alive_s) == (False, 300)
    assert spec_of(registry, "mine") is spec
    spec_of(registry, "pirate").make(None)
    assert (engines[0].model_path, engines[0].preset.system) == (str(file), "Say arr.")


def test_a_folder_of_models_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system decides, and lets an administrator read everything: so it is asked in its place."""

    def refuse(_folder: Path) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
        registry_of(settings(tmp_path, models_dir=str(tmp_path)))


def test_an_engine_is_told_of_no_file_that_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected: list[str] = []
    monkeypatch.setattr(spare, "expect", expected.append)
    for name in ("good.gguf", "bad\udcff.gguf"):
        (tmp_path / name).write_bytes(b"x")
    config = settings(tmp_path, backend="native")
    registry_of(config, str(tmp_path / "good.gguf"))
    with pytest.raises(ConfigError, match="not valid UTF-8"):
        registry_of(config, str(tmp_path / "bad\udcff.gguf"))
    assert expected == [str(tmp_path / "good.gguf")]


@pytest.mark.parametrize(
    ("engine", "complaint"),
    [("{ ctxsize = 1 }", "unknown key 'ctxsize'; did you mean `ctx_size`"), ("{ parallel = 0 }", "must be between 1")],
)
def test_settings_of_one_model_are_checked(tmp_path: Path, engine: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        registry_of(settings(tmp_path, f"[registry.models.a]\nengine = {engine}"))
    assert "[registry.models.a.engine]" in str(caught.value)


def test_missing_file_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ModelFileNotFound):
        registry_of(settings(tmp_path, backend="auto"), str(tmp_path / "missing.gguf"))


def test_models_of_a_folder_are_found_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    (folder / "deep").mkdir(parents=True)
    for name in ("a.gguf", "deep/b-00001-of-00002.gguf", "deep/b-00002-of-00002.gguf", "mmproj-a.gguf", "c.txt"):
        (folder / name).write_bytes(b"x")
    (folder / "half-00001-of-00002.gguf").write_bytes(b"x")
    config = settings(tmp_path, models_dir=str(folder), alias=["chat=b"], pin=["b"])
    registry = registry_of(config, "named")
    assert registry._discover is not None
    specs = {spec.model_id: spec for spec in registry._discover()}
    assert set(specs) == {"a", "b"}
    assert specs["a"].path == str(folder / "a.gguf")
    assert (specs["a"].keep_alive_s, specs["a"].loads_at_start, specs["a"].is_pinned) == (300, False, False)
    assert (specs["b"].names, specs["b"].is_pinned) == (("b", "chat"), True)
    assert specs["a"].created > 1_600_000_000


def test_a_found_file_that_cannot_be_served_is_left_out_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in (b"a.gguf", b"caf\xe9.gguf", b"m-00000-of-00003.gguf"):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(b"x")
    registry = registry_of(settings(tmp_path, models_dir=str(folder)), "named")
    assert registry._discover is not None
    for _ in range(2):
        assert [spec.model_id for spec in registry._discover()] == ["a", "m-00000-of-00003"]
    (warning,) = caplog.messages
    assert "caf\\udce9.gguf' is not valid UTF-8" in warning


def test_promise_is_what_the_engine_is_told(
    tmp_path: Path, smollm2_path: Path, gemma3_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(tmp_path, backend="auto", memory_budget=4096, parallel=2)
    registry = registry_of(config, str(smollm2_path), str(gemma3_path))
    spec = spec_of(registry, str(smollm2_path))
    needs = spec.measure()
    assert needs is not None
    assert needs.cache_bytes == 4096 // 4 // 2 * MIB
    plan = needs.within(needs.least_bytes + 100 * MIB)
    engines = made(monkeypatch)
    spec.make(plan)
    (engine,) = engines
    assert (engine.ctx_size, engine.kv_tokens) == (plan.ctx_size, plan.kv_tokens)
    assert engine.cache_ram == plan.cache_bytes // MIB < 512


def test_all_models_share_one_budget_of_kv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1-2: ONNX models and their replicas; what an engine is told is what it may hold."""
    for name in ("a", "b"):
        write_onnx_folder(tmp_path / name, max_position_embeddings=100_000)
    config = settings(tmp_path, backend="auto", kv_budget=6, replicas="3")
    registry = registry_of(config, str(tmp_path / "a"), str(tmp_path / "b"))
    engines = made(monkeypatch)
    for name in ("a", "b"):
        spec = spec_of(registry, str(tmp_path / name))
        needs = spec.measure()
        assert needs is not None
        spec.make(needs.within(1 << 40))
        assert engines[-1].kv_tokens == 3 * (MIB // needs.kv_bytes_per_token)
        assert engines[-1].ctx_size == MIB // needs.kv_bytes_per_token
    open_models = settings(tmp_path, backend="auto", kv_budget=6, models_dir=str(tmp_path))
    assert serving._kv_share_mib(open_models, 1) == 6 // 4
    assert serving._kv_share_mib(settings(tmp_path, kv_budget=6, models_max=2), 5) == 3
    assert serving._kv_share_mib(settings(tmp_path), 5) is None


def test_models_that_share_a_budget_of_kv_have_room_for_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only on the native backend, without replicas, and where every layer keeps every token."""
    paths = [str(write_tiny_model(tmp_path / f"{name}.gguf", TinyModel())) for name in "ab"]
    hybrid = TinyModel(architecture="gemma3", num_layers=6, keys={"attention.sliding_window": 4})
    windowed = str(write_tiny_model(tmp_path / "w.gguf", hybrid))
    engines = made(monkeypatch)

    def told(*models: str, **flags: Any) -> EngineConfig:
        given: dict[str, Any] = {"backend": "auto", "kv_budget": 6, "parallel": 1, **flags}
        config = settings(tmp_path, **given)
        spec = spec_of(registry_of(config, *models), models[0])
        needs = spec.measure()
        assert needs is not None
        token_bytes.append(needs.kv_bytes_per_token)
        spec.make(needs.within(1 << 40))
        return engines[-1]

    token_bytes: list[int] = []
    lending = told(*paths, ctx_size=100)
    assert (lending.kv_tokens, lending.most_kv_tokens) == (100, 6 * MIB // token_bytes[0])
    assert told(paths[0]).most_kv_tokens == 0, "it is alone"
    assert told(*paths, kv_budget=None).most_kv_tokens == 0
    assert told(*paths, replicas="2").most_kv_tokens == 0
    assert told(*paths, backend="llama").most_kv_tokens == 0
    assert told(windowed, paths[0]).most_kv_tokens == 0


def test_one_model_alone_looks_for_its_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = registry_of(settings(tmp_path), "tiny")
    engines = made(monkeypatch)
    spec_of(registry, "tiny").make(None)
    assert engines[0].cache_ram is None


def test_measuring_needs_no_weights_and_knows_who_computes(smollm2_path: Path) -> None:
    own = measure(EngineConfig(model_path=str(smollm2_path), cache_ram=10, parallel=2))
    assert isinstance(own, MemoryNeeds)
    assert (own.backend, own.min_cache_bytes) == ("native", 10 * MIB)
    kept = measure(EngineConfig(model_path=str(smollm2_path), cache_ram=10, kv_cache_dir="/tmp/kept"))
    assert kept is not None
    assert kept.min_cache_bytes == 256 * MIB, "a disk has so much memory in front of it, whoever says what"
    assert own.weights_bytes < smollm2_path.stat().st_size < own.least_bytes
    small = measure(EngineConfig(model_path=str(smollm2_path), kv_type="q8", ctx_size=512, kv_tokens=512))
    llama = measure(EngineConfig(model_path=str(smollm2_path), backend="llama", ctx_size=512, kv_tokens=512))
    assert small is not None
    assert llama is not None
    assert llama.backend == "llama"
    assert small.kv_bytes_per_token < llama.kv_bytes_per_token
    assert measure(EngineConfig(model="scripted", backend="scripted")) is None


@pytest.mark.parametrize(
    ("backend", "models", "expected"),
    [
        ("auto", ["a.gguf", "b.GGUF"], ["a.gguf", "b.GGUF"]),
        ("native", ["a.gguf"], ["a.gguf"]),
        ("llama", ["a.gguf"], []),
        ("onnx", ["folder"], []),
    ],
)
def test_the_engine_that_was_started_early_is_told_what_it_will_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, models: list[str], expected: list[str]
) -> None:
    told: list[str] = []
    monkeypatch.setattr("stoker.engine.spare.expect", told.append)
    monkeypatch.chdir(tmp_path)
    for model in models:
        (tmp_path / model).touch() if "." in model else write_onnx_folder(tmp_path / model)
    registry_of(settings(tmp_path, backend=backend), *models)
    assert [Path(path).name for path in told] == expected


def test_one_engine_or_several_replicas(caplog: pytest.LogCaptureFixture) -> None:
    def make(replicas: int | str, **config: Any) -> object:
        engine = EngineConfig(model="scripted", backend="scripted", **config)
        return serving.create_runtime(
            engine, VolatileHeaders(()), SupervisionConfig(), ReplicaConfig(replicas=replicas)
        )

    assert isinstance(make(1), EngineClient)
    assert isinstance(make("1-2", threads=2), ReplicatedRuntime)
    assert not caplog.messages
    make(3, threads=2)
    assert caplog.messages == ["3 replicas of one thread each are more than there are cores: they slow each other down"]
    with pytest.raises(ConfigError, match="use --kv-tokens 1024, or fewer replicas"):
        make(2, threads=2, ctx_size=512, kv_tokens=600)
    with pytest.raises(ConfigError, match="stoker cluster serve"):
        make("0-2")


def test_llama_server_is_told_what_the_plan_says_of_keys_and_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(head_size=32))
    config = settings(tmp_path, backend="auto", runtime="llama-server", ctx_size=512, parallel=1)
    spec, engines = spec_of(registry_of(config, str(path)), "m"), made(monkeypatch)
    needs = spec.measure()
    assert needs is not None
    spec.make(needs.within(1 << 40))
    spec.make(needs.within(needs.least_bytes))
    assert [(engine.cache_type_k, engine.cache_type_v) for engine in engines] == [(None, None), ("q8_0", "q8_0")]
    assert f"memory is short: the KV cache type of {path} is q8_0" in caplog.text
