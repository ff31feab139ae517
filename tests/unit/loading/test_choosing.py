"""Who computes a model, and what is said about it."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from stoker import LLM, SamplingParams
from stoker.core.batch import Batch, Chunk
from stoker.core.stages import no_mark
from stoker.engine.config import EngineConfig, KVType
from stoker.engine.loaded import Loaded
from stoker.errors import ConfigError, InvalidInput, ModelFileInvalid, ModelUnsupported, ResourceExhausted
from stoker.loading import preparing
from stoker.loading.choosing import load_model, measure
from stoker.loading.preparing import prepare_gguf
from stoker.models.memory_plan import MemoryNeeds
from tests.tiny_models import TinyModel, split_model, write_tiny_model

UNKNOWN_TYPE = TinyModel(type="Q8_K", hidden_size=256, feed_forward_size=256, head_size=64)
"""libllama has kernels for it, the native executor has none."""


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(preparing, "_prepared", None)
    return tmp_path / "cache"


@contextmanager
def loaded(path: Path, **options: Any) -> Generator[Loaded]:
    config = EngineConfig(model=str(path), model_path=str(path), ctx_size=64, kv_tokens=128, threads=1, **options)
    found = load_model(config, None, no_mark)
    try:
        yield found
    finally:
        found.backend.close()


def test_auto_takes_the_native_executor_and_says_so(
    tmp_path: Path, cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel())
    with caplog.at_level(logging.INFO), loaded(path) as found:
        assert found.backend_name == "native"
        assert found.kv_port is found.backend
        assert found.tokenizer.encode("ab") == [97, 98]
        assert found.backend.info.eog_token_ids
    assert "is computed by the native executor (" in caplog.text
    assert len(list((cache_dir / "packed").glob("*.stoker"))) == 1


def test_options_for_onnx_models_are_said_to_have_no_use(
    tmp_path: Path, cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel())
    with loaded(path):
        assert not caplog.messages
    with loaded(path, provider="cuda", onnx_variant="q4"):
        assert caplog.messages == [f"{path} is a GGUF file, and has no use for --provider, --onnx-variant"]


def test_auto_takes_libllama_for_the_rest_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", UNKNOWN_TYPE)
    with loaded(path) as found:
        assert found.backend_name == "llama"
    assert any("libllama computes: " in message and "Q8_K" in message for message in caplog.messages)


@pytest.mark.parametrize(
    "tiny",
    [
        TinyModel(context_length=0),
        TinyModel(context_length=2**32 - 1),
        TinyModel(keys={"rope.scaling.original_context_length": 0}),
        TinyModel(keys={"rope.dimension_count_swa": 0}),
    ],
    ids=["no_context", "no_bound", "no_original_context", "no_window_rope"],
)
def test_auto_leaves_numbers_to_libllama_that_it_makes_sense_of(tmp_path: Path, tiny: TinyModel) -> None:
    with loaded(write_tiny_model(tmp_path / "m.gguf", tiny)) as found:
        assert found.backend_name == "llama"


@pytest.mark.parametrize("tiny", [TinyModel(), TinyModel(feed_forward_size=100)], ids=["native", "llama"])
def test_parts_that_are_links_are_one_model(tmp_path: Path, tiny: TinyModel) -> None:
    """As the hub's own cache lays them out: names in one folder, contents under other names elsewhere."""
    path = write_tiny_model(tmp_path / "m.gguf", tiny)
    batch = Batch(0, (Chunk(0, 0, (1, 2, 3), 1),))
    with loaded(path) as found:
        expected = found.backend.forward(batch).copy()
    links = tmp_path / "snapshot"
    links.mkdir()
    for number, part in enumerate(split_model(path, 3)):
        (links / part.name).symlink_to(part.rename(tmp_path / f"blob{number}"))
    with loaded(links / "m-00001-of-00003.gguf") as found:
        np.testing.assert_array_equal(found.backend.forward(batch), expected)


def test_a_vocabulary_that_lacks_something_is_named_by_its_file(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel())
    path.write_bytes(path.read_bytes().replace(b"tokenizer.ggml.merges", b"tokenizer.ggml.merged"))
    with pytest.raises(ModelFileInvalid, match=r"m\.gguf cannot be used: .*`tokenizer\.ggml\.merges`") as caught:
        load_model(EngineConfig(model_path=str(path), ctx_size=64), None, no_mark)
    assert caught.value.fields == {"path": str(path)}


def test_native_refuses_what_it_cannot_and_names_it(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", UNKNOWN_TYPE)
    with pytest.raises(ModelUnsupported, match=r"no kernels for `.*`, of type Q8_K"), loaded(path, backend="native"):
        pass


def test_if_nobody_can_both_reasons_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    path = write_tiny_model(tmp_path / "m.gguf", UNKNOWN_TYPE)
    with pytest.raises(ModelUnsupported, match=r"Q8_K.*pip install 'stoker\[llama\]'"), loaded(path):
        pass


def test_a_gpu_is_left_to_libllama(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("stoker.backends.llama.gpu_name", lambda: "cuda")
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel())
    with loaded(path) as found:
        assert found.backend_name == "llama"
    assert "libllama can use a GPU here (cuda)" in caplog.text
    with loaded(path, backend="native") as found:
        assert found.backend_name == "native"


def test_keys_and_values_in_other_sizes(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(head_size=32, num_heads=2, num_kv_heads=1))
    with loaded(path, kv_type="q8") as found:
        assert " q8 " in found.backend.info.kv_format
    with loaded(path, kv_type="q8", backend="llama") as found:
        assert "keys q8_0" in found.backend.info.kv_format
    with loaded(path, kv_type="q4", backend="llama") as found:
        assert "keys q8_0, values q4_0" in found.backend.info.kv_format
    with loaded(path, kv_type="q16") as found:
        assert (found.backend_name, " q16 " in found.backend.info.kv_format) == ("native", True)
    words = "libllama does not keep .* as q16; give --kv-type f16"
    with pytest.raises(ConfigError, match=words), loaded(path, kv_type="q16", backend="llama"):
        pass


def test_whoever_gets_libllama_without_asking_for_it_is_told_why_it_refuses(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(head_size=576, num_heads=2, num_kv_heads=1))
    words = "heads of 576 elements .* libllama does not keep .* as q16"
    with pytest.raises(ConfigError, match=words), loaded(path, kv_type="q16"):
        pass


@pytest.mark.parametrize("kv_type", ["q8", "q4"])
def test_a_latent_vector_too_large_for_few_bits_is_refused_when_memory_is_planned(
    tmp_path: Path, kv_type: KVType
) -> None:
    keys = {"attention.kv_lora_rank": 576}  # and 16 elements that are rotated
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(architecture="deepseek2", keys=keys, num_experts=4))
    config = EngineConfig(model_path=str(path), ctx_size=64, backend="native")
    words = f"heads of 592 elements are too large for {kv_type}, which takes up to 576; give --kv-type f16"
    with pytest.raises(ConfigError, match=words):
        measure(msgspec.structs.replace(config, kv_type=kv_type))
    with pytest.raises(ConfigError, match=words), loaded(path, kv_type=kv_type):
        pass
    needs = needs_of(config)
    with pytest.raises(ResourceExhausted) as caught:
        needs.within(needs.least_bytes - needs.kv_bytes_per_token)
    assert "--kv-type" not in caught.value.message, "it has nothing smaller"
    with loaded(path) as found:
        assert " f16 " in found.backend.info.kv_format


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("backend", "auto, native, llama, onnx"),
        ("kv_type", "f16, f32, q8, q4, q16"),
        ("pooling", "mean, cls, last"),
        ("cache_type_v", "f32, f16, bf16"),
        ("split_mode", "none, layer, row"),
    ],
)
def test_names_that_there_are_not_are_refused_at_once(name: str, allowed: str) -> None:
    """Nothing but the command line, the environment and the file have been checked before."""
    given: dict[str, Any] = {name: "Q8"}
    with pytest.raises(InvalidInput, match=f"`{name}` must be one of {allowed}.*, not Q8") as refused:
        EngineConfig(model="m.gguf", **given)
    assert refused.value.fields["parameter"] == name


def test_it_needs_no_libllama(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(type="Q4_0"))
    script = (
        "import sys; sys.modules['llama_cpp'] = None\n"
        "from stoker import LLM, SamplingParams\n"
        f"with LLM({str(path)!r}, ctx_size=64, threads=1) as llm:\n"
        "    print(len(llm.generate('abc', SamplingParams(max_tokens=5, ignore_eos=True)).token_ids))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("5\n", 0), done.stderr


def test_packing_is_progress(tmp_path: Path) -> None:
    class Bar:
        def __init__(self) -> None:
            self.told: list[object] = []

        def start(self, total_bytes: int | None, label: str) -> None:
            self.told.append((label, total_bytes))

        def advance(self, num_bytes: int) -> None:
            self.told.append(num_bytes)

        def close(self) -> None:
            self.told.append("closed")

    path, bar = write_tiny_model(tmp_path / "m.gguf", TinyModel()), Bar()
    for _ in range(2):
        with LLM(path, ctx_size=64, threads=1, progress=bar) as llm:
            llm.generate("a", SamplingParams(max_tokens=1))
    (label, total), *advances = bar.told[: bar.told.index("closed")]  # type: ignore[misc]
    assert label == "packing the weights"
    assert sum(advances) == total  # type: ignore[arg-type]
    assert set(bar.told[bar.told.index("closed") :]) == {"closed"}, "the second start packs nothing"


def test_a_tokenizer_that_was_prepared_is_taken_once(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel())
    prepare_gguf(path)
    assert preparing._prepared is not None
    _, prepared = preparing._prepared
    with loaded(path) as first, loaded(path) as second:
        assert first.tokenizer is prepared
        assert second.tokenizer is not prepared


def test_what_was_prepared_of_another_file_is_dropped(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel())
    prepare_gguf(path)
    os.utime(path, (1, 1))  # as if it had been written anew
    assert preparing._prepared is not None
    _, prepared = preparing._prepared
    with loaded(path) as found:
        assert found.tokenizer is not prepared
    prepare_gguf(path)
    with loaded(path, backend="llama"):
        assert preparing._prepared is None


@pytest.mark.parametrize("content", [None, b"no model", b"GGUF\3\0\0\0"])
def test_preparing_says_nothing_about_bad_files(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "bad.gguf"
    if content is not None:
        path.write_bytes(content)
    prepare_gguf(path)
    assert preparing._prepared is None


def needs_of(config: EngineConfig) -> MemoryNeeds:
    needs = measure(config)
    assert needs is not None
    return needs


def test_a_context_that_does_not_fit_says_how_much_would_and_with_which_keys_and_values(tmp_path: Path) -> None:
    """And what is said does fit, to the token; one more does not."""
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel())
    config = EngineConfig(model_path=str(path), ctx_size=100_000, kv_type="f16", backend="native")
    needs = needs_of(config)
    available = needs.least_bytes - 90_000 * needs.kv_bytes_per_token
    with pytest.raises(ResourceExhausted) as caught:
        needs.within(available)
    found = re.search(
        r"--ctx-size (\d+) --kv-tokens \1 would fit; (\d+) tokens with --kv-type q8; (\d+) tokens with --kv-type q4\.",
        caught.value.message,
    )
    assert found is not None, caught.value.message
    for tokens, kv_type in zip(map(int, found.groups()), ("f16", "q8", "q4"), strict=True):
        shorter = msgspec.structs.replace(config, ctx_size=tokens, kv_type=kv_type, kv_tokens=tokens)
        with_room = needs.compute_bytes - needs_of(shorter).compute_bytes
        assert needs_of(shorter).within(available - with_room).kv_tokens == tokens
        longer = msgspec.structs.replace(shorter, ctx_size=tokens + 1000, kv_tokens=tokens + 1000)
        with pytest.raises(ResourceExhausted):
            needs_of(longer).within(available - with_room)
