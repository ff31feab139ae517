"""The physical limit of the machine it runs on: how fast memory can be read, how fast numbers can be multiplied, and so
how fast a given GGUF could be at best.

    python benchmarks/limits.py smollm2

Memory: the best of several read sweeps over a buffer larger than any cache, on all threads. Matrix peaks: the best
product of ONNX Runtime in float32 and in int8 (unsigned x signed). A pass cannot be faster than the slower of "every
weight and every cached key and value is read once" and "every multiplication is done at the peak".
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from stoker.backends.cores import usable_cores
from stoker.models.description import all_tensors
from stoker.models.gguf import GGUFFile, read_gguf
from stoker.models.store import resolve

_SWEEP_BYTES = 512 << 20
_SWEEPS = 12
_PRODUCTS = 12
_SIZES = (1024, 2048)
_PREFILLS = (500, 4000)
_BATCHES = (1, 8, 16, 32)
_LENGTH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Peaks, measured. Operations count a multiplication and an addition as two."""

    threads: int
    bytes_per_s: float
    int8_ops_per_s: float
    float32_ops_per_s: float

    @property
    def attention_ops_per_s(self) -> float:
        """Of numbers of 16 bits: as floats, or as codes of two bytes, which take three products of bytes."""
        return max(self.float32_ops_per_s, self.int8_ops_per_s / 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one model needs at the least."""

    weight_bytes: int
    """Matrices that every pass reads; an input embedding that is not also the output head is looked up, not read."""
    layer_ops: int
    """Operations per token in the layers' matrices."""
    head_ops: int
    """Operations per row of logits."""
    attention_ops: int
    """Operations per token and token attended to, over all layers without a window."""
    window_ops: int
    """The same over all layers with a window."""
    window: int
    kv_bytes: int
    """16-bit keys and values per token, over all layers without a window."""
    window_kv_bytes: int

    def attended(self, length: int) -> tuple[int, int]:
        """Operations and bytes of the attention of one token that sees `length` tokens."""
        seen = min(length, self.window) if self.window else length
        return (
            self.attention_ops * length + self.window_ops * seen,
            self.kv_bytes * length + self.window_kv_bytes * seen,
        )


def least_step_s(machine: Machine, work: Work, batch: int, length: int) -> float:
    """The shortest possible decode step of `batch` sequences of `length` tokens each, in seconds."""
    attention_ops, kv_bytes = work.attended(length)
    read_s = (work.weight_bytes + batch * kv_bytes) / machine.bytes_per_s
    matrix_s = batch * (work.layer_ops + work.head_ops) / machine.int8_ops_per_s
    return max(read_s, matrix_s + batch * attention_ops / machine.attention_ops_per_s)


def least_prefill_s(machine: Machine, work: Work, length: int) -> float:
    """The shortest possible time from nothing to the logits after a prompt of `length` tokens, in seconds."""
    attention_ops = sum(work.attended(position)[0] for position in range(1, length + 1))
    matrix_s = (length * work.layer_ops + work.head_ops) / machine.int8_ops_per_s
    return max(work.weight_bytes / machine.bytes_per_s, matrix_s + attention_ops / machine.attention_ops_per_s)


def measure_machine(threads: int) -> Machine:
    """Takes about ten seconds; run it on an idle machine."""
    return Machine(
        threads=threads,
        bytes_per_s=read_sweep(threads),
        int8_ops_per_s=max(_product(size, "int8", threads) for size in _SIZES),
        float32_ops_per_s=max(_product(size, "float32", threads) for size in _SIZES),
    )


def read_sweep(threads: int) -> float:
    """Bytes per second that all threads read together: each takes the maximum of its part of a buffer."""
    with reading(_SWEEP_BYTES, threads) as sweep:
        return _SWEEP_BYTES / _best_s(sweep, _SWEEPS)


@contextmanager
def reading(num_bytes: int, threads: int) -> Generator[Callable[[], None]]:
    """What reads a buffer of so many bytes once, each thread its part."""
    parts = np.array_split(np.ones(num_bytes // 4, np.float32), threads)
    with ThreadPoolExecutor(threads) as pool:

        def sweep() -> None:
            list(pool.map(np.max, parts))

        yield sweep


def _product(size: int, kind: str, threads: int) -> float:
    run = _session(size, kind, threads)
    return 2 * size**3 / _best_s(run, _PRODUCTS)


def _session(size: int, kind: str, threads: int) -> Callable[[], object]:
    """A product of two square matrices; the second is a constant, as weights are, so it may be laid out beforehand."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    weights: Any = random.standard_normal((size, size)).astype(np.float32)
    inputs: Any = weights
    operator, in_type, out_type = "MatMul", TensorProto.FLOAT, TensorProto.FLOAT
    if kind == "int8":
        weights, inputs = (weights * 30).astype(np.int8), (np.abs(weights) * 30).astype(np.uint8)
        operator, in_type, out_type = "MatMulInteger", TensorProto.UINT8, TensorProto.INT32
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", in_type, [size, size])],
        [helper.make_tensor_value_info("y", out_type, [size, size])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    runtime: Any = onnxruntime  # its types are not written down
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return partial(session.run, None, {"x": inputs})


def _best_s(run: Callable[[], object], repetitions: int) -> float:
    run()
    best = float("inf")
    for _ in range(repetitions):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best


def work_of(gguf: GGUFFile) -> Work:
    """Counts bytes and operations from the tensors' shapes: of experts as many as one token uses."""
    embedding = next(tensor for tensor in all_tensors(gguf) if tensor.name == "token_embd.weight")
    matrices = [tensor for tensor in all_tensors(gguf) if len(tensor.shape) == 2 and tensor is not embedding]
    head = next((tensor for tensor in matrices if tensor.name == "output.weight"), embedding)
    layers = [tensor for tensor in matrices if tensor is not head]
    experts = [tensor for tensor in all_tensors(gguf) if len(tensor.shape) == 3]
    share = (gguf.get_int(gguf.own_key("expert_used_count")) or 0) / (gguf.get_int(gguf.own_key("expert_count")) or 1)
    num_layers = gguf.require_int(gguf.own_key("block_count"))
    num_windowed, window = _windowed_layers(gguf, num_layers)
    per_layer_ops, per_layer_bytes = _attention_per_layer(gguf)
    return Work(
        weight_bytes=sum(tensor.num_bytes for tensor in [*layers, head])
        + round(share * sum(tensor.num_bytes for tensor in experts)),
        layer_ops=sum(2 * prod(tensor.shape) for tensor in layers)
        + round(share * sum(2 * prod(t.shape) for t in experts)),
        head_ops=2 * head.shape[0] * head.shape[1],
        attention_ops=per_layer_ops * (num_layers - num_windowed),
        window_ops=per_layer_ops * num_windowed,
        window=window,
        kv_bytes=per_layer_bytes * (num_layers - num_windowed),
        window_kv_bytes=per_layer_bytes * num_windowed,
    )


def _attention_per_layer(gguf: GGUFFile) -> tuple[int, int]:
    """Operations and 16-bit bytes per token attended to."""
    num_heads = gguf.require_int(gguf.own_key("attention.head_count"))
    num_kv_heads = gguf.get_int(gguf.own_key("attention.head_count_kv")) or num_heads
    head_size = gguf.require_int(gguf.own_key("embedding_length")) // num_heads
    key_size = gguf.get_int(gguf.own_key("attention.key_length")) or head_size
    value_size = gguf.get_int(gguf.own_key("attention.value_length")) or head_size
    return 2 * num_heads * (key_size + value_size), 2 * num_kv_heads * (key_size + value_size)


def _windowed_layers(gguf: GGUFFile, num_layers: int) -> tuple[int, int]:
    """How many layers see only a window (five of six, unless the file says otherwise), and how wide it is."""
    window = gguf.get_int(gguf.own_key("attention.sliding_window")) or 0
    pattern = gguf.get_int(gguf.own_key("attention.sliding_window_pattern")) or 6
    return (num_layers - num_layers // pattern, window) if window else (0, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="GGUF files or names")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--json", type=Path, help="also write the machine's peaks there")
    arguments = parser.parse_args()
    machine = measure_machine(arguments.threads)
    if arguments.json:
        arguments.json.write_text(json.dumps(asdict(machine), indent=2) + "\n")
    print(f"{machine.threads} threads of {os.cpu_count()} cores")
    print(f"memory    {machine.bytes_per_s / 1e9:8.1f} GB/s")
    print(f"int8      {machine.int8_ops_per_s / 1e9:8.0f} G operations/s")
    print(f"float32   {machine.float32_ops_per_s / 1e9:8.0f} G operations/s")
    for model in arguments.models:
        with read_gguf(resolve(model)) as gguf:
            _print_model(model, machine, work_of(gguf))


def _print_model(model: str, machine: Machine, work: Work) -> None:
    print(f"\n{model}: {work.weight_bytes / 2**20:.0f} MiB read a pass, at best")
    for batch in _BATCHES:
        step_s = least_step_s(machine, work, batch, _LENGTH)
        print(f"  decode, batch {batch:<3} {step_s * 1e3:8.2f} ms a step {batch / step_s:10.0f} tokens/s")
    for length in _PREFILLS:
        prefill_s = least_prefill_s(machine, work, length)
        print(f"  prompt of {length:<6} {prefill_s * 1e3:8.1f} ms        {length / prefill_s:10.0f} tokens/s")


if __name__ == "__main__":
    main()
