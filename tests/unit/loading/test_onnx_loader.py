"""ONNX folders from end to end, without a process between: what is loaded, what is refused, and who is asked."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import pytest

from stoker import LLM, SamplingParams
from stoker.assembly import build_engine
from stoker.core.stages import no_mark
from stoker.engine.config import EngineConfig
from stoker.engine.engine import Engine
from stoker.engine.loaded import Loaded
from stoker.engine.protocol import Failed, Output, Submit
from stoker.engine.supervisor import same_sizes
from stoker.errors import (
    ConfigError,
    ContextLengthExceeded,
    InvalidInput,
    ModelError,
    ModelFileInvalid,
    ModelFileNotFound,
    ModelUnsupported,
    ResourceExhausted,
)
from stoker.loading.choosing import load_model
from stoker.loading.onnx_placement import Placement, placement
from stoker.models.onnx_description import OnnxDescription, describe_onnx
from stoker.models.onnx_folder import open_onnx_folder
from stoker.runtime.shares import share_of
from tests.onnx_models import CHATML, TinyOnnx, write_onnx_folder, write_tokenizer
from tests.tiny_models import TinyModel, write_tiny_model

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_onnx_folder(tmp_path_factory.mktemp("onnx") / "tiny", TinyOnnx(external=True))


@pytest.fixture
def own_folder(folder: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return shutil.copytree(folder, tmp_path / "own")


@contextmanager
def loaded(path: Path, **options: Any) -> Generator[Loaded]:
    given: dict[str, Any] = {"threads": 1, **options}
    config = EngineConfig(model=str(path), model_path=str(path), **given)
    found = load_model(config, None, no_mark)
    try:
        yield found
    finally:
        found.backend.close()


def hint(folder: Path, **llm: Any) -> None:
    (folder / "metadata.json").write_text(json.dumps({"llm": llm}))


def test_a_folder_says_everything(folder: Path) -> None:
    with loaded(folder) as found:
        info = found.backend.info
        assert (found.backend_name, info.name, info.architecture) == ("onnx", "tiny", "llama")
        assert (info.trained_context, info.context_size, info.vocab_size) == (256, 256, 260)
        assert info.eog_token_ids == {257, 259}
        assert found.chat_template == CHATML
        assert [file.name for file in found.weight_files] == ["model.onnx", "model.onnx_data"]
        assert found.size_bytes > 0
        assert found.kv_port is found.backend


def test_a_graph_may_be_named_itself(folder: Path) -> None:
    with LLM(str(folder / "model.onnx"), threads=1) as llm:
        assert len(llm.generate("abc", GREEDY).token_ids) == 6


def test_a_folder_of_links_is_a_folder(own_folder: Path) -> None:
    """As the hub's cache has them: `snapshots/…/model.onnx` -> `blobs/…`."""
    blobs = own_folder.parent / "blobs"
    blobs.mkdir()
    for index, file in enumerate(sorted(own_folder.iterdir())):
        file.rename(blobs / str(index))
        file.symlink_to(blobs / str(index))
    with loaded(own_folder) as found:
        assert found.backend.info.name == "own"


def test_a_genai_config_may_name_everything_otherwise(tmp_path: Path) -> None:
    """And what it does not name keeps the name that the graph gives it."""
    folder = write_onnx_folder(tmp_path / "plain", TinyOnnx(attention="plain"))
    with LLM(str(folder), threads=1) as llm:
        expected = llm.generate("Hello", GREEDY).token_ids
    decoder = {
        "filename": "model.onnx",
        "num_hidden_layers": 2,
        "inputs": {
            "input_ids": "tokens",
            "attention_mask": "mask",
            "past_key_names": "cache_key_%d",
            "past_value_names": "cache_value_%d",
        },
        "outputs": {
            "logits": "scores",
            "present_key_names": "new_key_%d",
            "present_value_names": "present.%d.value",
        },
    }
    (folder / "genai_config.json").write_text(json.dumps({"model": {"decoder": decoder}}))
    names = {"input_ids": "tokens", "attention_mask": "mask", "logits": "scores"}
    for layer in range(2):
        names |= {f"past_key_values.{layer}.{kind}": f"cache_{kind}_{layer}" for kind in ("key", "value")}
        names[f"present.{layer}.key"] = f"new_key_{layer}"
    proto = onnx.load(str(folder / "model.onnx"))
    for value in (*proto.graph.input, *proto.graph.output):
        value.name = names.get(value.name, value.name)
    for node in proto.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    onnx.save(proto, str(folder / "model.onnx"))
    with LLM(str(folder), threads=1) as llm:
        assert llm.generate("Hello", GREEDY).token_ids == expected
    (folder / "genai_config.json").unlink()
    with pytest.raises(ModelUnsupported, match="its input `tokens` has no known meaning"), loaded(folder):
        pass


def test_the_real_template_is_rendered(folder: Path) -> None:
    """Weaknesses 1 and 2 of 1.3: ChatML from `tokenizer_config.json`, with a system message and several turns."""
    messages = [("system", "S"), ("user", "U"), ("assistant", "A"), ("user", "V")]
    rendered = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages) + "<|im_start|>assistant\n"
    with LLM(str(folder), threads=1) as llm:
        chat = llm.chat([{"role": role, "content": text} for role, text in messages], GREEDY)
        plain = llm.generate(rendered, GREEDY)
    assert (chat.text, chat.usage.prompt_tokens) == (plain.text, plain.usage.prompt_tokens)


def test_defaults_of_the_model_hold(own_folder: Path) -> None:
    (own_folder / "generation_config.json").write_text('{"do_sample": false, "max_new_tokens": 4, "top_k": 9}')
    with loaded(own_folder, sampling=SamplingParams(top_k=3, min_p=0.1)) as found:
        assert found.defaults == SamplingParams(temperature=0, max_tokens=4, top_k=9, min_p=0.1)


def test_hints_limit_what_runs(own_folder: Path) -> None:
    """Weakness 12 of 1.3: limits that were stored and never enforced."""
    hint(own_folder, max_seq_len=100, scheduler={"max_num_seqs": 2}, kv_cache={"block_size": 8, "total_blocks": 20})
    engine, card = build_engine(EngineConfig(model_path=str(own_folder), threads=1, cache_ram=0))
    assert (card.context_size, card.kv_tokens, card.parallel) == (100, 160, 2)
    with pytest.raises(ContextLengthExceeded):
        engine.admit(Submit("long", [1] * 100, GREEDY))
    for name in "abc":
        engine.add(engine.admit(Submit(name, [1, 2, 3], GREEDY)))
    engine.step()
    assert engine.stats().num_running == 2
    engine.close()


def test_a_user_wins_over_hints(own_folder: Path) -> None:
    hint(own_folder, max_seq_len=100, kv_cache={"total_blocks": 20})
    with loaded(own_folder, ctx_size=64, kv_tokens=128) as found:
        assert (found.backend.info.context_size, found.backend.info.kv_tokens) == (64, 128)


def package(folder: Path, **asked: object) -> OnnxDescription:
    (folder / "metadata.json").write_text(json.dumps({"hardware_requirements": asked}))
    return describe_onnx(open_onnx_folder(folder))


def test_a_package_says_which_provider_and_device_compute(own_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """S1-42: a provider that only another program has is passed over, and the command line wins."""
    asked = {"preferred_provider": "metal", "fallback_providers": ["cuda", "cpu"], "device_id": 2}
    facts = package(own_folder, **asked, intra_op_threads=3)
    assert placement(EngineConfig(), facts) == Placement("cuda,cpu", 2, 3)
    assert "metadata.json asks for metal" in caplog.text
    own = EngineConfig(provider="openvino", device_id=0, threads=1)
    assert placement(own, facts) == Placement("openvino", 0, 1)
    assert placement(EngineConfig(), package(own_folder)) == Placement("auto", 0, None)
    with loaded(own_folder, threads=1) as found:
        assert found.backend_name == "onnx"


def test_one_graph_is_not_spread_over_devices(own_folder: Path) -> None:
    refused = pytest.raises(ConfigError, match=r"--device-id 0,1: a graph is computed on one device; --replicas")
    with refused, loaded(own_folder, device_id="0,1"):
        pass


def test_each_kind_of_file_has_its_backend(folder: Path, tmp_path: Path) -> None:
    gguf = write_tiny_model(tmp_path / "m.gguf", TinyModel())
    for path, backend in ((folder, "native"), (folder, "llama"), (gguf, "onnx")):
        with (
            pytest.raises(ModelUnsupported, match=rf"which the backend `{backend}` does not run"),
            loaded(path, backend=backend),
        ):
            pass
    with loaded(folder, backend="onnx") as found:
        assert found.backend_name == "onnx"


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda f: (f / "model.onnx_data").unlink(), ModelFileNotFound, "keeps its weights in model.onnx_data"),
        (lambda f: cut(f / "model.onnx_data"), ModelFileInvalid, "model.onnx_data cannot be used: it is truncated"),
        (lambda f: cut(f / "model.onnx"), ModelFileInvalid, "model.onnx cannot be used: .*truncated"),
        (lambda f: (f / "tokenizer.json").unlink(), ModelFileNotFound, r"no tokenizer\.json \(looked in "),
        (lambda f: (f / "tokenizer.json").write_text("{}"), ModelFileInvalid, r"tokenizer\.json cannot be used"),
        (lambda f: more_words(f, 1000), ModelFileInvalid, r"has \d+ tokens, but .* has logits for 260: .* belong"),
    ],
)
def test_bad_folders_are_refused_by_name(own_folder: Path, spoil: Any, error: type[ModelError], message: str) -> None:
    spoil(own_folder)
    with pytest.raises(error, match=message), loaded(own_folder):
        pass


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def more_words(folder: Path, number: int) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"] |= {f"word{index}": 300 + index for index in range(number)}
    (folder / "tokenizer.json").write_text(json.dumps(content))


def test_added_tokens_beyond_the_logits_are_refused_in_prompts_only(own_folder: Path) -> None:
    """S1-34. Gemma 3's smaller models share a tokenizer with those that see."""
    write_tokenizer(own_folder, num_more=2)
    with LLM(str(own_folder), threads=1) as llm:
        assert llm.generate("ok", GREEDY).token_ids
        with pytest.raises(InvalidInput, match="261"):
            llm.generate("word1", GREEDY)


def test_sizes_that_cannot_be_had_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kv_type in ("f16", "q8", "q16", "i16"):
        words = f"keeps keys and values as f32, not {kv_type}; leave --kv-type out"
        with pytest.raises(ConfigError, match=words), loaded(folder, kv_type=kv_type):
            pass
    with loaded(folder, kv_type="f32"):
        pass
    with pytest.raises(ConfigError, match="no provider 'gpu'"), loaded(folder, provider="gpu"):
        pass
    with pytest.raises(ConfigError, match=r"adapters .* are for GGUF models"), loaded(folder, lora=["a=a.gguf"]):
        pass
    monkeypatch.setattr("stoker.loading.onnx.available_memory", lambda: 1 << 20)
    with pytest.raises(ResourceExhausted, match="tiny needs"), loaded(folder):
        pass


def test_it_is_said_who_computes(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), loaded(folder):
        pass
    assert "is computed by ONNX Runtime (cpu)" in caplog.text


def test_replicas_map_packed_weights_from_the_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them: also those that are told the sizes of the first one."""
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path))
    with loaded(folder):
        assert not (tmp_path / "packed").exists()
    share = share_of(EngineConfig(model_path=str(folder)), 1, 2, num_cores=2, ram_mib=0)
    engine, card = build_engine(EngineConfig(model_path=str(folder), threads=1))
    engine.close()
    second = load_model(same_sizes(share, card), None, no_mark)
    second.backend.close()
    assert [path.suffix for path in (tmp_path / "packed").iterdir() if path.is_dir()] == [".onnx"]


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        '{"model": {"type": "Magic", "vocab": {}}}',
        '{"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b c"]}}',
        '{"version": "1.0", "model": {"type": "Unigram", "unk_id": 9, "vocab": [["a", 0.0]]}}',
        '{"model": {"type": "BPE", "vocab": ["a", "b"], "merges": []}}',
        "\x00\x01",
    ],
)
def test_a_tokenizer_that_nobody_reads_is_named(own_folder: Path, text: str) -> None:
    (own_folder / "tokenizer.json").write_text(text)
    with pytest.raises(ModelError, match=r"tokenizer\.json"), loaded(own_folder):
        pass


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(folder: Path, clock: Clock) -> Generator[Engine]:
    from stoker.core.scheduler import SchedulerConfig

    with loaded(folder, ctx_size=200, kv_tokens=800) as found:
        yield Engine(found, SchedulerConfig(max_running=2), clock=clock)


def add(engine: Engine, name: str, *, timeout_s: float | None = None) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    engine.add(engine.admit(Submit(name, list(range(20)), sampling, timeout_s=timeout_s, cache_prompt=False)))


@pytest.mark.parametrize("point", ["before it is sent", "while it waits", "between two tokens", "after its end"])
def test_a_request_can_be_cancelled_wherever_it_is(engine: Engine, point: str) -> None:
    """S1-23's four points, at each of which its neighbours go on and nothing of it is kept."""
    add(engine, "a")
    add(engine, "b")
    if point == "before it is sent":
        engine.abort("x")
    else:
        add(engine, "x")
    for _ in range(3 if point == "between two tokens" else 40 if point == "after its end" else 1):
        engine.step()
    if point == "between two tokens":
        engine.abort("a")
        engine.step()
        engine.step()
    engine.abort("x")
    ended: set[str] = set()
    while engine.has_work:
        for event in engine.step():
            assert isinstance(event, Output)
            assert event.request_id != "x" or point == "after its end"
            if event.finish_reason:
                ended.add(event.request_id)
        engine.check_integrity()
    assert engine.stats().kv_used == engine.stats().num_running == 0
    assert "x" not in ended or point == "after its end"


def test_deadlines_hold(engine: Engine, clock: Clock) -> None:
    add(engine, "late", timeout_s=5.0)
    add(engine, "calm")
    engine.step()
    clock.now = 6.0
    events = engine.step()
    assert [event.request_id for event in events if isinstance(event, Failed)] == ["late"]
    assert any(event.code == "timeout" for event in events if isinstance(event, Failed))
    assert engine.stats().num_running == 1


def test_what_is_counted(engine: Engine) -> None:
    """S1-30: bytes used and capacity, free cells, sequences, what was evicted; the time is the histogram of steps."""
    per_token = 2 * 2 * 2 * 16 * 4
    assert engine.stats().kv_capacity_bytes == 800 * per_token
    for number in range(20):
        prompt = [number, *range(60)]
        engine.add(engine.admit(Submit(str(number), prompt, SamplingParams(temperature=0, max_tokens=1))))
        while engine.has_work:
            engine.step()
    beat = engine.stats()
    assert (beat.kv_sequences, beat.kv_held_bytes) == (13, beat.kv_retained * per_token)
    assert beat.kv_retained <= beat.kv_capacity
    assert beat.pool_evicted_sequences == 7
    assert sum(beat.step_s.counts) == 20
