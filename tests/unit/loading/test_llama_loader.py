"""What only libllama does: asking for it takes libllama, and it does what was asked."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from numpy.typing import NDArray

from stoker.backends.llama import AttentionOptions, DeviceOptions
from stoker.backends.llama.native import library
from stoker.core.batch import Batch, Chunk
from stoker.core.embedding import Piece
from stoker.core.stages import no_mark
from stoker.engine.config import EngineConfig, adapter_specs, tensor_overrides
from stoker.engine.loaded import Loaded
from stoker.errors import AdapterInvalid, ConfigError, InvalidInput, ModelError, ModelUnsupported
from stoker.loading.choosing import load_model, measure
from stoker.loading.llama import host_patterns, refuse_what_kills_it
from stoker.models.gguf import read_gguf
from stoker.models.memory_plan import state_bytes
from tests.adapter_files import random_pairs, write_adapter, write_control_vector
from tests.projector_files import write_projector
from tests.recurrent_models import write_mamba
from tests.tiny_models import TinyModel, write_tiny_model

TINY = TinyModel(num_layers=3, head_size=32, num_heads=2, num_kv_heads=1)
PROMPT = tuple(range(40, 72))


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))
    return write_tiny_model(tmp_path / "m.gguf", TINY)


@contextmanager
def loaded(path: Path, **options: Any) -> Generator[Loaded]:
    config = EngineConfig(model=str(path), model_path=str(path), ctx_size=256, kv_tokens=256, threads=1, **options)
    found = load_model(config, None, no_mark)
    try:
        found.adapters.load(adapter_specs(config))
        yield found
    finally:
        found.backend.close()


def rows(found: Loaded) -> NDArray[np.float32]:
    return found.backend.forward(Batch(1, (Chunk(0, 0, PROMPT, len(PROMPT)),))).copy()


def rows_of(path: Path, **options: Any) -> NDArray[np.float32]:
    with loaded(path, backend="llama", **options) as found:
        return rows(found)


def test_each_slot_of_a_recurrent_model_is_in_its_plan(tmp_path: Path) -> None:
    path = write_mamba(tmp_path / "mamba.gguf")
    with read_gguf(path) as gguf:
        num_bytes = state_bytes(gguf)
    two, five = (measure(EngineConfig(model=str(path), model_path=str(path), parallel=slots)) for slots in (2, 5))
    assert two is not None
    assert five is not None
    assert num_bytes > 0
    assert five.compute_bytes - two.compute_bytes == 3 * num_bytes


@pytest.mark.parametrize(("backend", "taken"), [("auto", "native"), ("native", "native"), ("llama", "llama")])
def test_every_backend_for_gguf_takes_adapters(model: Path, tmp_path: Path, backend: str, taken: str) -> None:
    lora = write_adapter(tmp_path / "a.gguf", random_pairs(model, 1))
    with loaded(model, lora=[f"a={lora}"], backend=backend) as found:
        assert found.backend_name == taken
        assert [card.name for card in found.adapters.cards()] == ["a"]


def test_auto_takes_libllama_for_control_vectors_and_says_why(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vector = write_control_vector(tmp_path / "v.gguf", {1: np.ones(64, np.float32)})
    with loaded(model, control_vector=[str(vector)]) as found:
        assert found.backend_name == "llama"
    assert any("libllama computes: control vectors" in message for message in caplog.messages)


@pytest.mark.parametrize(
    "options", [{"cache_type_k": "q8_0"}, {"flash_attn": "on"}, {"gpu_layers": 3}, {"tensor_split": "1"}]
)
def test_auto_takes_libllama_for_its_options(model: Path, options: dict[str, Any]) -> None:
    with loaded(model, **options) as found:
        assert found.backend_name == "llama"
    with pytest.raises(ModelUnsupported, match="option of libllama"), loaded(model, backend="native", **options):
        pass


@pytest.mark.parametrize("backend", ["native", "llama"])
def test_an_adapter_that_does_not_fit_stops_the_load_by_name(model: Path, tmp_path: Path, backend: str) -> None:
    """With the same words, whoever computes."""
    pairs = random_pairs(model, 1)
    name = next(iter(pairs))
    whole = write_adapter(tmp_path / "whole.gguf", pairs)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole.read_bytes()[:-999])
    odd = tmp_path / "odd.gguf"
    misfit = {name: (pairs[name][0][:, :32].copy(), pairs[name][1])}
    for path, words in (
        (model, "it is a model"),
        (cut, "cut"),
        (tmp_path / "gone.gguf", "gone"),
        (write_adapter(odd, misfit), f"do not fit `{name}`"),
        (write_adapter(tmp_path / "other.gguf", pairs, architecture="qwen2"), "architecture qwen2, not llama"),
    ):
        with pytest.raises(AdapterInvalid, match=words) as refused, loaded(model, lora=[f"a={path}"], backend=backend):
            pass
        assert str(path) in refused.value.message


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"cache_type_k": "f32", "cache_type_v": "f32"}, 0.02),
        ({"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, 0.1),
        ({"cache_type_k": "q4_0", "cache_type_v": "q4_0"}, 0.6),
        ({"kv_type": "q8"}, 0.1),
        ({"flash_attn": "off"}, 0.02),
        ({"flash_attn": "on"}, 0.02),
    ],
)
def test_keys_and_values_are_kept_as_told(model: Path, options: dict[str, Any], limit: float) -> None:
    plain = rows_of(model)
    other = rows_of(model, **options)
    if "q" in str(options.values()) or options == {"flash_attn": "off"}:
        assert not np.array_equal(plain, other), "nothing has changed"
    assert np.abs(plain - other).mean() < limit * plain.std()


def test_kv_of_other_types_is_other_kv(model: Path) -> None:
    formats: set[str] = set()
    for options in ({}, {"cache_type_k": "q8_0"}, {"cache_type_v": "q8_0"}, {"kv_type": "q8"}):
        with loaded(model, backend="llama", **options) as found:
            formats.add(found.backend.info.kv_format)
    assert len(formats) == 4


def test_exported_kv_in_blocks_comes_back(model: Path) -> None:
    with loaded(model, cache_type_k="q8_0", cache_type_v="q4_0") as found:
        assert found.kv_port is not None
        whole = rows(found)
        state = found.kv_port.export_kv(0, 0, 31)
        found.kv_port.import_kv(1, 0, 31, state)
        row = found.backend.forward(Batch(2, (Chunk(1, 31, PROMPT[31:], 1),)))[0]
        assert np.abs(row - whole[31]).mean() < 0.02 * whole.std()


def test_heads_that_are_no_blocks_are_refused(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel())
    with pytest.raises(ConfigError, match="does not divide"):
        rows_of(path, cache_type_k="q8_0")


def test_values_in_blocks_need_flash_attention() -> None:
    with pytest.raises(ConfigError, match="--flash-attn"):
        AttentionOptions(type_v="q8_0", flash="off")
    assert AttentionOptions(type_k="q8_0", type_v="q4_0").element_bytes == (34 + 18) / 64


def test_devices_reach_libllama() -> None:
    lib = library()
    params = lib.llama_model_default_params()
    held = DeviceOptions(gpu_layers=7, split_mode="row", main_gpu=1, tensor_split=(3.0, 1.0)).apply(lib, params)
    assert (params.n_gpu_layers, params.split_mode, params.main_gpu) == (7, lib.LLAMA_SPLIT_MODE_ROW, 1)
    assert [params.tensor_split[index] for index in range(3)] == [3.0, 1.0, 0.0]
    assert len(held[1]) == lib.llama_max_devices()
    with pytest.raises(ConfigError, match="devices"):
        DeviceOptions(tensor_split=(1.0,) * 1000).apply(lib, lib.llama_model_default_params())


def test_tensors_are_placed_by_libllama(model: Path) -> None:
    lib = library()
    params = lib.llama_model_default_params()
    held = DeviceOptions(overrides=(("exps", "CPU"), ("attn", "CPU"))).apply(lib, params)
    assert params.tensor_buft_overrides
    assert [entry.pattern for entry in held[0]] == [b"exps", b"attn", None]
    with pytest.raises(ConfigError, match=r"no buffer 'CUDA9' here; there are .*CPU"):
        DeviceOptions(overrides=(("exps", "CUDA9"),)).apply(lib, lib.llama_model_default_params())
    assert np.array_equal(rows_of(model, override_tensor="ffn_down=CPU", n_cpu_moe=1), rows_of(model))


def test_overrides_are_those_of_llama_cpp() -> None:
    found = tensor_overrides(EngineConfig(n_cpu_moe=2, override_tensor=r"attn_k\.=CUDA0,exps=CPU"))
    assert [each.buffer for each in found] == ["CPU", "CPU", "CUDA0", "CPU"]
    assert re.search(found[1].pattern, "blk.1.ffn_gate_up_exps.weight")
    assert not re.search(found[1].pattern, "blk.11.ffn_up_exps.weight")
    assert host_patterns(EngineConfig(override_tensor="a=CUDA0,b=CPU")) == ["b"]
    for text in ("exps", "=CPU", "(=CPU"):
        with pytest.raises(InvalidInput, match="override_tensor"):
            EngineConfig(override_tensor=text)
    assert EngineConfig(gpu_layers="auto").num_gpu_layers is None
    with pytest.raises(InvalidInput, match="gpu_layers"):
        EngineConfig(gpu_layers="all")  # type: ignore[arg-type]


def test_split_options_load_a_model_without_gpus(model: Path) -> None:
    plain = rows_of(model)
    assert np.array_equal(rows_of(model, gpu_layers=2, split_mode="none", main_gpu=0, tensor_split="3,1"), plain)


@pytest.mark.parametrize("options", [{"tensor_split": "a"}, {"tensor_split": "1,-1"}, {"gpu_layers": -2}])
def test_impossible_options(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        EngineConfig(**options)


def test_a_control_vector_is_a_bias_behind_its_layer(model: Path, tmp_path: Path) -> None:
    """Exactly what a bias of that layer's last product does, which the architecture knows."""
    direction = np.random.default_rng(4).normal(0, 1, TINY.hidden_size).astype(np.float32)
    vector = write_control_vector(tmp_path / "v.gguf", {1: direction, 2: 3 * direction})
    biased = {f"blk.{layer}.ffn_down.bias": 0.5 * layer_scale * direction for layer, layer_scale in ((1, 1), (2, 3))}
    both = write_tiny_model(tmp_path / "both.gguf", replace(TINY, vectors=biased))
    first = {name: bias for name, bias in biased.items() if "blk.1." in name}
    one = write_tiny_model(tmp_path / "one.gguf", replace(TINY, vectors=first))
    plain = rows_of(model)
    steered = rows_of(model, control_vector=[f"{vector}:0.5"])
    assert np.abs(steered - rows_of(both)).max() < 1e-3 * plain.std()
    assert np.abs(steered - plain).mean() > 0.1 * plain.std()
    cut = rows_of(model, control_vector=[f"{vector}:0.5"], control_vector_layers="1-1")
    assert np.abs(cut - rows_of(one)).max() < 1e-3 * plain.std()


def test_a_control_vector_holds_for_embeddings_and_names_the_kv(model: Path, tmp_path: Path) -> None:
    vector = write_control_vector(tmp_path / "v.gguf", {1: np.ones(TINY.hidden_size, dtype=np.float32)})
    embedded: list[NDArray[np.float32]] = []
    formats: set[str] = set()
    for options in ({}, {"control_vector": [str(vector)]}, {"control_vector": [f"{vector}:2"]}):
        with loaded(model, backend="llama", **options) as found:
            assert found.embedder is not None
            embedded.append(found.embedder.embed([Piece(1, 0, PROMPT, is_last=True)]))
            formats.add(found.backend.info.kv_format)
    assert len(formats) == 3
    assert np.abs(embedded[0] - embedded[1]).max() > 0.01
    assert np.abs(embedded[1] - embedded[2]).max() > 0.01


def test_layers_without_a_vector(model: Path) -> None:
    with pytest.raises(ConfigError, match="needs a control vector"):
        rows_of(model, control_vector_layers="1-2")


@pytest.mark.parametrize(
    ("tiny", "reasons"),
    [
        (TinyModel(keys={"rope.scaling.type": "su"}), ["native", "libllama cannot run", "rope scaling `su`"]),
        (TinyModel(architecture="bloom", vector_type="F16"), ["`bloom`", "libllama cannot run", "norm.weight"]),
        (
            TinyModel(vectors={"blk.0.odd.weight": np.zeros(8, np.float32)}),
            ["does not support the tensors blk.0.odd.weight", "libllama cannot load"],
        ),
    ],
)
def test_what_nobody_runs_is_refused_for_the_reasons_of_each(
    tmp_path: Path, tiny: TinyModel, reasons: list[str]
) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", tiny)
    with pytest.raises(ModelError) as caught, loaded(path):
        pass
    for reason in reasons:
        assert reason in caught.value.message


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3"])
@pytest.mark.parametrize(
    ("pattern", "is_refused"), [(1, True), ([False, False], True), (2, False), (0, False), (None, False)]
)
def test_libllama_is_not_given_a_window_that_no_layer_has(
    model: Path, architecture: str, pattern: object, *, is_refused: bool
) -> None:
    """It would end the process. The native executor computes such a model."""
    window = {"attention.sliding_window": 24, "attention.sliding_window_pattern": pattern}
    path = write_tiny_model(model, TinyModel(architecture=architecture, has_head=False, keys=window))
    words = "attention.sliding_window` is given, but no layer has"
    expected = pytest.raises(ModelUnsupported, match=words) if is_refused else nullcontext()
    with expected, loaded(path, backend="llama"):
        pass
    with loaded(path) as found:
        assert found.backend_name == "native"


@pytest.mark.parametrize(("dtype", "type_name"), [(np.float64, "F64"), (np.int32, "I32")])
def test_libllama_is_not_given_weights_that_it_crashes_on(tmp_path: Path, dtype: type, type_name: str) -> None:
    path = tmp_path / "m.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_tensor("output.weight", np.zeros((4, 32), dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with read_gguf(path) as gguf, pytest.raises(ModelUnsupported, match=rf"`output\.weight` of type {type_name}"):
        refuse_what_kills_it(gguf)


def test_a_projector_is_used_also_where_rows_have_places(model: Path, tmp_path: Path):
    projector = str(write_projector(tmp_path / "mmproj.gguf", 64, kind="gemma3"))
    with loaded(model, backend="llama", mmproj=projector) as found:
        assert found.projector is not None
        assert found.rows_port is not None
        assert found.backend.info.max_batch_tokens == 256, "the pool has no more"
    rotating = write_tiny_model(tmp_path / "q.gguf", TinyModel(architecture="qwen2vl"))
    with loaded(rotating, backend="llama", mmproj=projector) as found:
        traits = found.backend.info.traits
        assert (found.projector is None, traits.can_truncate, traits.copies_whole) == (False, False, True)
    with loaded(rotating, backend="llama", mmproj="off") as found:
        traits = found.backend.info.traits
        assert (found.projector, traits.can_truncate, traits.copies_whole) == (None, True, False)
