"""What the benchmarks compute, not what they measure."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from http_overhead import in_turn, interval_of_median, mean_gap_s
from limits import Machine, Work, least_prefill_s, least_step_s, work_of
from peers import Absent, Present, Setting, batched_bench, find_peer, onnxruntime_genai
from report import Peers, write_report

from stoker.models.gguf import read_gguf
from tests.tiny_models import TinyModel, write_tiny_model

MACHINE = Machine(threads=2, bytes_per_s=10e9, int8_ops_per_s=1e12, float32_ops_per_s=1e11)
WORK = Work(
    weight_bytes=10**9,
    layer_ops=2 * 10**9,
    head_ops=10**9,
    attention_ops=1000,
    window_ops=500,
    window=100,
    kv_bytes=2000,
    window_kv_bytes=1000,
)


def test_a_small_batch_is_limited_by_memory_and_a_large_one_by_arithmetic() -> None:
    assert least_step_s(MACHINE, WORK, batch=1, length=0) == pytest.approx(0.1)
    assert least_step_s(MACHINE, WORK, batch=1, length=10**5) == pytest.approx(0.1 + (2000e5 + 1000 * 100) / 10e9)
    arithmetic_s = 1000 * 3e9 / 1e12 + 1000 * 3 * (1000 * 200 + 500 * 100) / 1e12
    assert least_step_s(MACHINE, WORK, batch=1000, length=200) == pytest.approx(arithmetic_s)


def test_a_prompt_computes_one_row_of_logits_and_attends_to_what_stands_before() -> None:
    attention = sum(1000 * position + 500 * min(position, 100) for position in range(1, 501))
    assert least_prefill_s(MACHINE, WORK, 500) == pytest.approx((500 * 2e9 + 1e9 + 3 * attention) / 1e12)


def test_attention_is_limited_by_three_products_of_bytes_or_one_of_floats() -> None:
    assert MACHINE.attention_ops_per_s == pytest.approx(1e12 / 3)
    assert replace(MACHINE, float32_ops_per_s=5e11).attention_ops_per_s == 5e11


def test_the_work_of_a_real_model_is_counted_from_its_tensors(smollm2_path: Path) -> None:
    with read_gguf(smollm2_path) as gguf:
        work = work_of(gguf)
    layer = 576 * (576 + 192 + 192 + 576) + 3 * 576 * 1536
    assert work.layer_ops == 2 * 30 * layer
    assert work.head_ops == 2 * 576 * 49_152  # tied to the embedding
    assert work.kv_bytes == 30 * 2 * 192 * 2
    assert work.weight_bytes == 30 * layer * 20 // 32 + 576 * 49_152 * 34 // 32


def test_what_drifts_evenly_cancels_out_of_a_round() -> None:
    """A machine that becomes slower with every measurement, and a side that always takes a tenth more."""
    speeds = iter(range(100, 10_000))
    found = in_turn({"a": lambda: next(speeds), "b": lambda: 1.1 * next(speeds), "c": lambda: next(speeds)}, 0)
    assert len(found["a"]) >= 3
    assert (np.array(found["b"]) / np.array(found["a"])).tolist() == pytest.approx([1.1] * len(found["a"]))
    assert found["a"] == pytest.approx(found["c"])


def test_the_interval_of_a_median_holds_it_and_narrows_with_more_values() -> None:
    values = np.random.default_rng(1).normal(1.02, 0.1, 400)
    few, many = interval_of_median(values[:20]), interval_of_median(values)
    assert many[0] < 1.02 < many[1]
    assert many[1] - many[0] < few[1] - few[0]


def test_several_tokens_in_one_piece_count_as_several() -> None:
    assert mean_gap_s([0.0, 0.2, 0.9], num_tokens=10) == pytest.approx(0.1)


def test_a_peer_that_cannot_be_measured_is_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "peers").write_text("no folder, so nothing can be installed there")
    peer = find_peer("onnxruntime-genai", tmp_path / "peers")
    assert isinstance(peer, Absent)
    assert "onnxruntime-genai" in peer.reason
    assert list(Peers({peer.name: peer}).lines()) == [f"- onnxruntime-genai: absent: {peer.reason}"]


def test_the_ceiling_is_read_from_the_binarys_lines(tmp_path: Path) -> None:
    binary = tmp_path / "llama-batched-bench"
    line = '{"n_kv_max": 64, "pp": 32, "tg": 64, "pl": 8, "speed_pp": 512.5, "speed_tg": 99.25, "speed": 120.0}'
    binary.write_text(f"#!/bin/sh\necho \"loading $2\"\necho '{line}'\n")
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    setting = Setting(model=tmp_path / "m.gguf", threads=2, parallel=8, context=4096)
    (ceiling,) = batched_bench(binary, setting, (8,), 32, 64)
    assert (ceiling.pl, ceiling.speed_pp, ceiling.speed_tg) == (8, 512.5, 99.25)


def test_a_peer_that_reads_no_gguf_gets_the_same_weights_exported(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "m.gguf", TinyModel(type="Q4_0"))
    peer = Present("onnxruntime-genai", "1", Path(sys.executable))
    setting = Setting(model=model, threads=2, parallel=8, context=4096)
    program = onnxruntime_genai(peer, setting, tmp_path / "m-onnx")
    assert program.offline_command[2:] == (str(tmp_path / "m-onnx"), "2")
    written = (tmp_path / "m-onnx" / "model.onnx").stat().st_mtime_ns
    assert onnxruntime_genai(peer, setting, tmp_path / "m-onnx") == program
    assert (tmp_path / "m-onnx" / "model.onnx").stat().st_mtime_ns == written


FAKE_GENAI = """
import json
from pathlib import Path
import numpy as np

class Config:
    def __init__(self, folder):
        self.folder = Path(folder)
        assert (self.folder / "genai_config.json").exists()
    def overlay(self, text):
        self.threads = json.loads(text)["model"]["decoder"]["session_options"]["intra_op_num_threads"]

class Model:
    def __init__(self, config):
        assert config.threads == 2

class Tensor:
    def __init__(self, values):
        self.as_numpy = lambda: values

class Tokenizer:
    def __init__(self, model):
        pass
    def update_options(self, **options):
        pass
    def encode(self, text):
        return np.arange(len(text.split()))
    def encode_batch(self, texts):
        return Tensor(np.zeros((len(texts), max(len(text.split()) for text in texts))))

class GeneratorParams:
    def __init__(self, model):
        pass
    def set_search_options(self, **options):
        self.options = options

class Generator:
    def __init__(self, model, params):
        self.options, self.count = params.options, 0
    def append_tokens(self, ids):
        assert len(ids) == self.options["batch_size"]
        self.count += ids.shape[1]
    def is_done(self):
        return self.count == self.options["max_length"] == self.options["min_length"]
    def generate_next_token(self):
        self.count += 1
    def token_count(self):
        return self.count
"""


def test_the_program_of_onnxruntime_genai_answers_a_job(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime_genai.py").write_text(FAKE_GENAI)
    model = write_tiny_model(tmp_path / "m.gguf", TinyModel(type="Q4_0"))
    peer = Present("onnxruntime-genai", "1", Path(sys.executable))
    setting = Setting(model=model, threads=2, parallel=8, context=4096)
    program = onnxruntime_genai(peer, setting, tmp_path / "m-onnx")
    job = {"prompts": ["one two three", *["one"] * 69], "output_tokens": 5}
    done = subprocess.run(
        program.offline_command,
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    outcome = json.loads(done.stdout)
    assert outcome["counts"] == [{"prompt_tokens": n, "output_tokens": 5} for n in (3, *[1] * 69)]


def test_a_report_without_results_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no results"):
        write_report(tmp_path, MACHINE, {}, {}, Peers({}), {})
