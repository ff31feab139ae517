"""Files that draft from what a model computes, from the configuration to answers: the same ones, right or wrong."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from stoker.assembly import build_engine
from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig
from stoker.engine.engine import Engine
from stoker.engine.protocol import Output, Submit
from stoker.engine.question_messages import AdapterChoice
from stoker.errors import BackendError, ConfigError, ModelFileInvalid, ModelUnsupported, ResourceExhausted
from stoker.loading.choosing import measure
from tests.adapter_files import random_pairs, write_adapter
from tests.predictable_models import predictable, predictable_gemma, right_assistant, right_eagle
from tests.tiny_drafters import TinyAssistant, TinyEagle, write_assistant, write_eagle
from tests.tiny_models import TinyModel, write_tiny_model
from tests.unit.loading.test_draft_heads import HYBRID, make_passes_free, sampled
from tests.unit.loading.test_draft_models import answers
from tests.waiting import wait_until

PLAIN = TinyModel(type="Q8_0", has_head=False)
WINDOWED = TinyModel(
    architecture="gpt-oss", type="Q8_0", num_experts=8, keys={"attention.sliding_window": 8}, has_head=False
)


GEMMA = TinyModel(
    architecture="gemma4", type="Q8_0", num_layers=4, keys={"attention.shared_kv_layers": 2}, has_head=False
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    models = {"plain": PLAIN, "hybrid": replace(HYBRID, num_draft_heads=0), "windowed": WINDOWED, "head": HYBRID}
    models["predictable"] = predictable()
    for name, model in models.items():
        write_tiny_model(folder / f"{name}.gguf", model)
        write_eagle(folder / f"{name}-eagle.gguf", TinyEagle(target=model, num_tokens=100, type="Q8_0"))
    write_eagle(folder / "right.gguf", right_eagle(predictable()))
    write_tiny_model(folder / "gemma.gguf", GEMMA)
    write_assistant(folder / "gemma-assistant.gguf", TinyAssistant(target=GEMMA, type="Q8_0"))
    write_tiny_model(folder / "predictable-gemma.gguf", predictable_gemma())
    write_assistant(folder / "right-assistant.gguf", right_assistant(predictable_gemma()))
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "cache"))


def config(folder: Path, name: str, draft: str = "", **fields: object) -> EngineConfig:
    path, drafter = str(folder / f"{name}.gguf"), str(folder / f"{draft}.gguf") if draft else ""
    sizes = EngineConfig(
        model_path=path, draft_model=drafter, ctx_size=256, kv_tokens=512, threads=1, parallel=2, cache_ram=8
    )
    return msgspec.structs.replace(sizes, **fields)


@contextmanager
def opened(config: EngineConfig) -> Generator[Engine]:
    engine, _ = build_engine(config)
    if config.draft_model and config.max_draft != 0:
        make_passes_free(engine)
    yield engine
    engine.check_integrity()
    engine.close()


@pytest.mark.parametrize(
    ("name", "draft"),
    [
        ("plain", "plain-eagle"),
        ("hybrid", "hybrid-eagle"),
        ("windowed", "windowed-eagle"),
        ("head", "head-eagle"),
        ("predictable", "predictable-eagle"),
        ("predictable", "right"),
        ("gemma", "gemma-assistant"),
        ("predictable-gemma", "right-assistant"),
    ],
)
def test_no_answer_is_changed(folder: Path, name: str, draft: str) -> None:
    with opened(config(folder, name, draft)) as drafting, opened(config(folder, name, max_draft=0)) as plain:
        assert answers(drafting) == answers(plain)
        assert answers(drafting) == answers(plain), "from the prefix cache"
        stats = drafting.stats()
        assert stats.drafted_model_tokens > 10
        if draft.startswith("right"):
            assert stats.accepted_model_tokens > 0.5 * stats.drafted_model_tokens


def test_sampled_requests_are_drafted_for_with_their_own_random_numbers(folder: Path) -> None:
    with (
        opened(config(folder, "predictable", "right")) as drafting,
        opened(config(folder, "predictable", max_draft=0)) as plain,
    ):
        assert sampled(drafting) == sampled(plain)
        stats = drafting.stats()
        assert stats.drafted_model_tokens > 60
        assert stats.accepted_model_tokens > 0.5 * stats.drafted_model_tokens


def in_company(engine: Engine) -> dict[str, list[int]]:
    """Answers to requests of which every other one is without the adapter."""
    return many(engine, 4, adapters=(None, []))


def many(
    engine: Engine,
    num_requests: int = 6,
    prompt: int = 40,
    count: int = 60,
    adapters: Sequence[list[AdapterChoice] | None] = (None,),
) -> dict[str, list[int]]:
    """Answers to requests of which not all fit into the pool at once.

    Args:
        adapters: of the requests, in turn; None = those that are set.
    """
    found: dict[str, list[int]] = {}
    for number in range(num_requests):
        ids = np.random.default_rng(number).integers(0, 250, prompt).tolist()
        sampling = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        chosen = adapters[number % len(adapters)]
        engine.add(engine.admit(Submit(f"{number}", ids, sampling, adapters=chosen)))
    while engine.has_work:
        for event in engine.step():
            assert isinstance(event, Output)
            found.setdefault(event.request_id, []).extend(event.token_ids)
    return found


@pytest.mark.parametrize(
    ("name", "draft"),
    [
        ("predictable", "predictable-eagle"),
        ("predictable", "right"),
        ("predictable-gemma", "right-assistant"),
    ],
)
def test_preempted_requests_are_drafted_for_again(folder: Path, name: str, draft: str) -> None:
    sizes = {"kv_tokens": 128, "ctx_size": 128, "parallel": 3, "cache_ram": 0}
    with (
        opened(config(folder, name, draft, **sizes)) as drafting,
        opened(config(folder, name, max_draft=0)) as plain,
    ):
        assert many(drafting) == many(plain)
        stats = drafting.stats()
        assert stats.num_preemptions > 0
        assert stats.drafted_model_tokens > 10


@pytest.mark.parametrize("last", ["same", "none"])
@pytest.mark.parametrize(
    ("name", "draft", "is_kept_with_it"),
    [("plain", "plain-eagle", True), ("predictable", "right", True), ("predictable-gemma", "right-assistant", False)],
)
def test_what_an_earlier_start_has_kept_is_gone_on_from(
    folder: Path, tmp_path: Path, name: str, draft: str, last: str, is_kept_with_it: bool
) -> None:
    """EAGLE-3 has a part in what is kept, so a start without it finds nothing; the assistant keeps nothing."""
    fields = {"kv_cache_dir": str(tmp_path / "kv"), "cache_ram": 8}
    with opened(config(folder, name, max_draft=0)) as plain:
        expected = many(plain, 2, 100, 20)
    for start, drafter in enumerate((draft, draft, draft if last == "same" else "")):
        finds_it = start > 0 and bool(drafter or not is_kept_with_it)
        with opened(config(folder, name, drafter, **fields)) as engine:
            engine._scheduler.tiering._is_worth = lambda _: True  # type: ignore[method-assign]
            if finds_it:
                wait_until(lambda engine=engine: engine.stats().tiers.ram_blocks >= 8)
            assert many(engine, 2, 100, 20) == expected
            stats = engine.stats()
            assert (stats.drafted_model_tokens > 0) == bool(drafter)
            assert stats.tiers.restored_tokens == (198 if finds_it else 0)
            engine._transfers.close()
    is_another = last == "none" and is_kept_with_it
    assert len(list((tmp_path / "kv" / "kv").glob("*/"))) == (2 if is_another else 1)


@pytest.mark.parametrize(
    ("name", "draft", "architecture"),
    [
        ("plain", "plain-eagle", "llama"),
        ("predictable", "right", "glm4moe"),
        ("predictable-gemma", "right-assistant", "gemma4"),
    ],
)
def test_adapters_change_what_it_reads_and_no_answer(
    folder: Path, tmp_path: Path, name: str, draft: str, architecture: str
) -> None:
    pairs = random_pairs(folder / f"{name}.gguf", 1)
    lora = [str(write_adapter(tmp_path / "adapter.gguf", pairs, architecture=architecture))]
    with (
        opened(config(folder, name, draft, lora=lora)) as drafting,
        opened(config(folder, name, max_draft=0, lora=lora)) as plain,
        opened(config(folder, name, max_draft=0)) as without,
    ):
        expected = in_company(plain)
        assert in_company(drafting) == expected
        assert in_company(drafting) == expected, "from the prefix cache"
        stats = drafting.stats()
        assert stats.drafted_model_tokens > 5
        assert stats.cached_tokens > 0
        bare = many(without, 4)
        assert [expected[key] == bare[key] for key in bare] == [False, True, False, True]


def test_without_drafts_it_is_not_loaded(folder: Path) -> None:
    with opened(config(folder, "plain", "plain-eagle", max_draft=0)) as engine:
        assert engine._drafting is None


def test_the_memory_plan_counts_its_weights_and_its_kv(folder: Path) -> None:
    alone, both = measure(config(folder, "plain")), measure(config(folder, "plain", "plain-eagle"))
    assert alone is not None
    assert both is not None
    assert alone.weights_bytes < both.weights_bytes < 3 * alone.weights_bytes
    assert both.kv_bytes_per_token == 1.5 * alone.kv_bytes_per_token, "it has one layer, the model has two"
    assert both.compute_bytes > alone.compute_bytes
    with opened(config(folder, "plain", "plain-eagle")) as engine:
        assert engine._backend.info.kv_bytes_per_token == both.kv_bytes_per_token
    with pytest.raises(ResourceExhausted, match=r"plain\.gguf with plain-eagle\.gguf needs"):
        both.within(alone.least_bytes)


def test_one_that_fails_is_left_alone(folder: Path) -> None:
    def fail(*_: object) -> list[list[int]]:
        raise BackendError("no memory")

    with (
        opened(config(folder, "predictable", "right")) as drafting,
        opened(config(folder, "predictable", max_draft=0)) as plain,
    ):
        drafting._drafting._port.draft = fail  # type: ignore[union-attr]
        assert answers(drafting) == answers(plain)
        assert drafting.stats().drafted_model_tokens == 0


WRONG: dict[str, tuple[TinyEagle, type[Exception], str]] = {
    "hidden size": (
        TinyEagle(target=PLAIN, keys={"target_hidden_size": 96}),
        ModelFileInvalid,
        "for a model with hidden states of 96 numbers, not 64",
    ),
    "no size": (TinyEagle(target=PLAIN, keys={"target_hidden_size": None}), ModelFileInvalid, "target_hidden_size"),
    "layer": (TinyEagle(target=PLAIN, layers=(0, 1, 2)), ModelFileInvalid, "layer 2, and the model has 2 layers"),
    "negative layer": (TinyEagle(target=PLAIN, layers=(0, 1, -1)), ModelFileInvalid, "input of layer -1"),
    "two layers": (TinyEagle(target=PLAIN, layers=(0, 1)), ModelFileInvalid, "has 2 entries, not 3"),
    "no layers": (TinyEagle(target=PLAIN, keys={"target_layers": None}), ModelFileInvalid, "has 0 entries, not 3"),
    "more layers": (TinyEagle(target=PLAIN, keys={"block_count": 2}), ModelFileInvalid, "has 2 layers, not 1"),
    "no map": (
        TinyEagle(target=PLAIN, vectors={"output.weight": np.ones((100, 64), np.float32)}),
        ModelFileInvalid,
        "head has 100 rows, and there is no `d2t`",
    ),
    "map of another length": (
        TinyEagle(target=PLAIN, ids=tuple(range(50)), vectors={"output.weight": np.ones((60, 64), np.float32)}),
        ModelFileInvalid,
        r"`d2t` of type I64 and shape \[50\] is no list of tokens",
    ),
    "map beyond": (TinyEagle(target=PLAIN, ids=(1, 2, 5000)), ModelFileInvalid, "such as the model does not have"),
    "negative map": (TinyEagle(target=PLAIN, ids=(1, 2, -1)), ModelFileInvalid, "such as the model does not have"),
    "map with a token twice": (TinyEagle(target=PLAIN, ids=(1, 2, 2)), ModelFileInvalid, "names tokens twice"),
    "shape": (
        TinyEagle(target=PLAIN, vectors={"fc.weight": np.ones((64, 64), np.float32)}),
        ModelFileInvalid,
        r"`fc.weight` has the shape \[64, 64\], not \[192, 64\]",
    ),
    "tensor": (
        TinyEagle(target=PLAIN, vectors={"blk.0.attn_sinks.weight": np.ones(4, np.float32)}),
        ModelUnsupported,
        r"--draft-model wrong\.gguf: .*does not support the tensors blk.0.attn_sinks.weight",
    ),
    "embedding": (
        TinyEagle(target=PLAIN, hidden_size=96, num_heads=6, has_embedding=False),
        ModelFileInvalid,
        "has no `token_embd.weight`",
    ),
    "head": (
        TinyEagle(target=PLAIN, hidden_size=96, num_heads=6, has_head=False),
        ModelFileInvalid,
        "has no `output.weight`",
    ),
    "vocabulary": (
        TinyEagle(target=replace(PLAIN, control=("<|extra|>",))),
        ConfigError,
        "their vocabularies differ: token .* is .* in one and .* in the other",
    ),
}


_WITHOUT_WINDOWS = {
    "attention.sliding_window_pattern": None,
    "attention.key_length_swa": 32,
    "attention.value_length_swa": 32,
}
WRONG_ASSISTANTS: dict[str, tuple[TinyAssistant, str]] = {
    "hidden size": (TinyAssistant(target=GEMMA, keys={"embedding_length_out": 96}), "hidden states of 96 numbers"),
    "no hidden size": (TinyAssistant(target=GEMMA, keys={"embedding_length_out": None}), "embedding_length_out"),
    "window": (TinyAssistant(target=GEMMA, keys={"attention.sliding_window": 48}), "no layer with such a window"),
    "no windows": (
        TinyAssistant(target=GEMMA, keys=_WITHOUT_WINDOWS),
        "does not list which layers have a window",
    ),
    "heads": (TinyAssistant(target=GEMMA, num_heads=3, hidden_size=96), "3 heads cannot share 2 heads"),
    "head size": (
        TinyAssistant(target=GEMMA, keys={"attention.key_length_swa": 32, "attention.value_length_swa": 32}),
        "do not fit the keys of the model",
    ),
    "vocabulary": (
        TinyAssistant(target=GEMMA, vectors={"token_embd.weight": np.ones((100, 32), np.float32)}),
        "its vocabulary has",
    ),
    "projection": (
        TinyAssistant(target=GEMMA, vectors={"nextn.pre_projection.weight": np.ones((32, 64), np.float32)}),
        "`nextn.pre_projection.weight` has the shape",
    ),
}


@pytest.mark.parametrize("case", WRONG_ASSISTANTS)
def test_an_assistant_that_does_not_fit_is_refused(folder: Path, tmp_path: Path, case: str) -> None:
    assistant, message = WRONG_ASSISTANTS[case]
    drafter = write_assistant(tmp_path / "wrong.gguf", assistant)
    with pytest.raises(ModelFileInvalid, match=message):
        build_engine(config(folder, "gemma", draft_model=str(drafter)))


def test_an_assistant_is_for_gemma_4_alone(folder: Path) -> None:
    with pytest.raises(ModelFileInvalid, match=r"drafts for a Gemma 4 .* not for llama"):
        build_engine(config(folder, "plain", "gemma-assistant"))


def test_the_memory_plan_counts_an_assistant(folder: Path) -> None:
    alone, both = measure(config(folder, "gemma")), measure(config(folder, "gemma", "gemma-assistant"))
    assert alone is not None
    assert both is not None
    assert both.weights_bytes > alone.weights_bytes
    assert both.kv_bytes_per_token == alone.kv_bytes_per_token, "it keeps nothing"


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_does_not_fit_is_refused(folder: Path, tmp_path: Path, case: str) -> None:
    eagle, error, message = WRONG[case]
    drafter = write_eagle(tmp_path / "wrong.gguf", eagle)
    with pytest.raises(error, match=message):
        build_engine(config(folder, "plain", draft_model=str(drafter)))
    if error is not ConfigError:
        with pytest.raises(error, match=message):
            measure(config(folder, "plain", draft_model=str(drafter)))


def test_it_is_no_model_of_its_own(folder: Path) -> None:
    with pytest.raises(ModelUnsupported, match="drafts for another model: `--draft-model`"):
        build_engine(config(folder, "plain-eagle", backend="native"))
