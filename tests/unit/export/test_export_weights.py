"""What stands in an exported folder is what stood in the file, matrix by matrix; or as far from it as is told."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from gguf.quants import dequantize

from stoker.errors import ModelUnsupported
from stoker.export import ExportOptions, ExportReport, export_model
from tests.tiny_models import EXPORTED_TYPES, TinyModel, write_tiny_model
from tests.unit.export.written import Written

SHAPE: dict[str, Any] = {"hidden_size": 256, "feed_forward_size": 512, "head_size": 64, "num_layers": 1}


def matrices(path: Path) -> dict[str, np.ndarray]:
    """What each product of the graph is to multiply with, by the `gguf` package."""
    found = {t.name: np.asarray(dequantize(t.data, t.tensor_type), np.float32) for t in GGUFReader(path).tensors}
    query_key_value = np.concatenate([found[f"blk.0.attn_{part}.weight"] for part in "qkv"])
    return {
        "layers.0.query_key_value": query_key_value,
        "layers.0.attention_output": found["blk.0.attn_output.weight"],
        "layers.0.gate.layers.0.up": np.concatenate([found[f"blk.0.ffn_{part}.weight"] for part in ("gate", "up")]),
        "layers.0.down": found["blk.0.ffn_down.weight"],
        "logits": found.get("output.weight", found["token_embd.weight"]),
    }


def export(tmp_path: Path, model: TinyModel, weights: str) -> tuple[Written, ExportReport, dict[str, np.ndarray]]:
    tmp_path.mkdir(exist_ok=True)
    path = write_tiny_model(tmp_path / "m.gguf", model)
    options = ExportOptions(weights=weights, context_size=16)  # pyright: ignore[reportArgumentType]
    report = export_model(path, tmp_path / "onnx", options)
    return Written(tmp_path / "onnx"), report, matrices(path)


@pytest.mark.parametrize("is_tied", [False, True], ids=["own head", "tied"])
@pytest.mark.parametrize("kind", EXPORTED_TYPES)
def test_kept_weights_are_the_same(tmp_path: Path, kind: str, is_tied: bool) -> None:
    written, report, expected = export(tmp_path, TinyModel(type=kind, has_head=not is_tied, **SHAPE), "keep")
    for name, weights in expected.items():
        np.testing.assert_allclose(written.matrix(name), weights, rtol=0, atol=1e-6 * np.abs(weights).max())
    assert [(part.type, part.count, part.relative_error) for part in report.matrices] == [(kind, 9 - is_tied, 0.0)]


@pytest.mark.parametrize(("weights", "limit"), [("f16", 4e-4), ("f32", 1e-7), ("int8", 6e-3), ("int4", 0.12)])
@pytest.mark.parametrize("kind", ["F32", "Q4_K", "Q8_0", "Q4_0"])
def test_rounded_weights_are_as_far_away_as_the_report_says(
    tmp_path: Path, kind: str, weights: str, limit: float
) -> None:
    written, report, expected = export(tmp_path, TinyModel(type=kind, has_head=False, **SHAPE), weights)
    found = [written.matrix(name) - matrix for name, matrix in expected.items()]
    error = np.sqrt(sum(np.square(part).sum() for part in found) / sum(np.square(m).sum() for m in expected.values()))
    (part,) = report.matrices
    assert part.relative_error == pytest.approx(error, rel=1e-3, abs=1e-7)
    assert error <= limit


@pytest.mark.parametrize(
    ("kind", "weights", "bits"),
    [("Q4_0", "int8", 4), ("Q8_0", "int8", 8), ("Q3_K", "int4", 4), ("Q4_K", "int8", 8), ("Q8_0", "int4", 4)],
)
def test_what_has_few_bits_already_is_not_rounded(tmp_path: Path, kind: str, weights: str, bits: int) -> None:
    written, report, _ = export(tmp_path, TinyModel(type=kind, has_head=False, **SHAPE), weights)
    assert {written.bits(name) for name in ("layers.0.down", "logits")} == {bits}
    assert (report.matrices[0].relative_error == 0) == ((kind, weights) not in (("Q4_K", "int8"), ("Q8_0", "int4")))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "F16", "F32"])
def test_a_tied_table_is_in_the_file_once(tmp_path: Path, kind: str) -> None:
    tied, _, _ = export(tmp_path / "tied", TinyModel(type=kind, has_head=False, **SHAPE), "keep")
    owned, _, _ = export(tmp_path / "owned", TinyModel(type=kind, has_head=True, **SHAPE), "keep")
    sizes = [(written.folder / "model.onnx.data").stat().st_size for written in (tied, owned)]
    assert sizes[1] - sizes[0] >= 263 * 256 // 2


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K", "F16"])
def test_nothing_is_written_that_no_node_takes(tmp_path: Path, kind: str) -> None:
    written, _, _ = export(tmp_path, TinyModel(type=kind, **SHAPE), "keep")
    taken = {name for node in written.model.graph.node for name in node.input}
    assert {name for name, _, _ in written.external()} <= taken
    lengths = {(first, length) for _, first, length in written.external()}
    assert (tmp_path / "onnx" / "model.onnx.data").stat().st_size < sum(length + 4096 for _, length in lengths)


def test_tensors_of_their_own_do_not_overlap_and_begin_at_pages(tmp_path: Path) -> None:
    written, _, _ = export(tmp_path, TinyModel(type="Q4_K", has_head=False, **SHAPE), "keep")
    places = sorted((first, length, name) for name, first, length in written.external())
    assert all(first % 4096 == 0 for first, _, _ in places)
    for (first, length, _), (following, other, _) in pairwise(places):
        assert following >= first + length or (following, other) == (first, length)
    last = places[-1]
    assert (tmp_path / "onnx" / "model.onnx.data").stat().st_size >= last[0] + last[1]


def test_numbers_that_are_too_large_for_16_bits_are_refused(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel())
    content = bytearray(path.read_bytes())
    tensor = next(t for t in GGUFReader(path).tensors if t.name == "blk.1.ffn_down.weight")
    content[tensor.data_offset : tensor.data_offset + 4] = np.float32(1e6).tobytes()
    path.write_bytes(content)
    with pytest.raises(ModelUnsupported, match=r"`blk.1.ffn_down.weight` holds numbers that are too large.*f32"):
        export_model(path, tmp_path / "onnx", ExportOptions(weights="f16"))
    assert not (tmp_path / "onnx").exists()


def test_weights_are_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(vocab_size=30_000, has_head=False, **SHAPE))
    peaks = list[int]()

    class Peak:
        """Satisfies `Progress`: looks at the memory that was taken since the writing began."""

        def start(self, total_bytes: int | None, label: str) -> None:
            tracemalloc.start()

        def advance(self, num_bytes: int) -> None:
            peaks.append(tracemalloc.get_traced_memory()[1])

        def close(self) -> None:
            tracemalloc.stop()

    report = export_model(path, tmp_path / "onnx", ExportOptions(weights="f16", context_size=16), progress=Peak())
    assert report.num_bytes > 30_000 * 256 * 2
    assert max(peaks) < 8 << 20
