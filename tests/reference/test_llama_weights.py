"""Sharing and freeing weights, on real files (S0-1 … S0-8 of the reference systems)."""

from __future__ import annotations

import gc
import logging
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stoker.backends.llama import weights as weights_module
from stoker.backends.llama.weights import LoadOptions, LoadProgress, Weights, load_weights
from stoker.core.batch import Chunk
from stoker.errors import ModelFileInvalid
from tests.reference.llama_runs import compute, open_backend, step

pytestmark = pytest.mark.slow

OPTIONS = LoadOptions()


@pytest.fixture
def own_copy(smollm2_path: Path, tmp_path: Path) -> Path:
    """A file that no other test has loaded."""
    path = tmp_path / "model.gguf"
    path.write_bytes(smollm2_path.read_bytes())
    return path


def test_the_same_file_is_loaded_once(own_copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = load_weights(own_copy, OPTIONS)
    with caplog.at_level(logging.INFO, logger="stoker.llama"):
        assert load_weights(own_copy, OPTIONS) is first
    assert f"reusing the loaded weights of {own_copy}" in caplog.text


def test_a_symlink_and_a_relative_path_are_the_same_file(own_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_weights(own_copy, OPTIONS)
    link = own_copy.with_name("link.gguf")
    link.symlink_to(own_copy)
    monkeypatch.chdir(own_copy.parent)
    assert load_weights(link, OPTIONS) is first
    assert load_weights(Path("model.gguf"), OPTIONS) is first


def test_other_options_do_not_share(own_copy: Path) -> None:
    assert load_weights(own_copy, OPTIONS) is not load_weights(own_copy, LoadOptions(use_mmap=False))


def test_weights_are_freed_with_their_last_user(own_copy: Path) -> None:
    one, two = open_backend(own_copy), open_backend(own_copy)
    weights = weakref.ref(load_weights(own_copy, OPTIONS))
    one.close()
    gc.collect()
    assert weights() is not None
    assert step(two, Chunk(0, 0, (5, 6), 1)).shape == (1, 49152)
    assert two.tokenizer.encode("still here")
    two.close()
    assert weights() is None


def test_replicas_do_not_see_each_other(smollm2_path: Path) -> None:
    with open_backend(smollm2_path) as one, open_backend(smollm2_path) as two:
        compute(one, 0, [5, 6, 7])
        assert step(two, Chunk(0, 0, (5, 6), 1)).shape == (1, 49152)
        assert step(one, Chunk(0, 3, (8,), 1)).shape == (1, 49152)


def test_threads_that_load_at_once_load_once(own_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Path] = []
    all_there = threading.Barrier(4)

    class CountedWeights(Weights):
        def __init__(self, path: Path, options: LoadOptions, progress: LoadProgress | None) -> None:
            loads.append(path)
            super().__init__(path, options, progress)

    def load(_: int) -> Weights:
        all_there.wait(60)
        return load_weights(own_copy, OPTIONS)

    monkeypatch.setattr(weights_module, "Weights", CountedWeights)
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(load, range(4)))
    assert loads == [own_copy]
    assert len(set(map(id, loaded))) == 1


def test_a_failed_load_is_not_remembered(smollm2_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    whole = smollm2_path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFileInvalid):
        load_weights(path, OPTIONS)
    path.write_bytes(whole)
    assert load_weights(path, OPTIONS).architecture == "llama"


def test_a_replaced_file_is_loaded_afresh(own_copy: Path, gemma3_path: Path) -> None:
    old = load_weights(own_copy, OPTIONS)
    fresh = own_copy.with_name("fresh.gguf")
    fresh.write_bytes(gemma3_path.read_bytes())
    os.replace(fresh, own_copy)
    new = load_weights(own_copy, OPTIONS)
    assert (old.architecture, new.architecture) == ("llama", "gemma3")


def test_a_file_that_changes_while_it_is_loaded_is_refused(own_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class TouchedWeights(Weights):
        def __init__(self, path: Path, options: LoadOptions, progress: LoadProgress | None) -> None:
            super().__init__(path, options, progress)
            os.utime(path, (1, 1))

    monkeypatch.setattr(weights_module, "Weights", TouchedWeights)
    with pytest.raises(ModelFileInvalid, match="changed"):
        load_weights(own_copy, OPTIONS)


@pytest.mark.parametrize("part", [0.001, 0.5, 0.99])
def test_a_truncated_model_is_refused(smollm2_path: Path, tmp_path: Path, part: float) -> None:
    path = tmp_path / "cut.gguf"
    whole = smollm2_path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(ModelFileInvalid, match="cannot load") as failure:
        load_weights(path, OPTIONS)
    assert "no reason given" not in failure.value.message


def test_two_models_live_in_one_process(smollm2_path: Path, gemma3_path: Path) -> None:
    with open_backend(smollm2_path) as llama, open_backend(gemma3_path, kv_tokens=512) as gemma:
        before = compute(llama, 0, [5, 6, 7])
        assert step(gemma, Chunk(0, 0, (2, 818), 1)).shape == (1, 262144)
        assert (compute(llama, 1, [5, 6, 7]) == before).all()
        gemma.close()
        assert (compute(llama, 2, [5, 6, 7]) == before).all()
