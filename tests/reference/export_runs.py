"""Small steps that the tests of exported models share: they are computed by ONNX Runtime alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from stoker.export import ExportOptions, export_model

Rows = NDArray[np.float32]
_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


def exported(path: Path, folder: Path, **options: Any) -> Path:
    """The folder, written with these options."""
    export_model(path, folder, ExportOptions(**options))
    return folder


class ExportedModel:
    """A session on an exported folder, with one thread."""

    def __init__(self, folder: Path, name: str = "model.onnx") -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(folder / name, options, providers=["CPUExecutionProvider"])
        self.inputs = {item.name: item for item in self.session.get_inputs()}
        self.outputs = [item.name for item in self.session.get_outputs()]

    def rows(self, token_ids: Sequence[int], sizes: Sequence[int] = ()) -> Rows:
        """Logits of all positions, computed in chunks of these sizes and then the rest at once."""
        at, found, cache = 0, list[Rows](), self.empty_cache()
        for size in (*sizes, len(token_ids) - sum(sizes)):
            chunk = np.array([token_ids[at : at + size]], dtype=np.int64)
            at += size
            logits, cache = self.step(chunk, np.ones((1, at), dtype=np.int64), cache)
            found.append(logits[0])
        return np.concatenate(found)

    def step(
        self, ids: NDArray[np.int64], mask: NDArray[np.int64], cache: dict[str, NDArray[Any]]
    ) -> tuple[Rows, dict[str, NDArray[Any]]]:
        """Logits, and the longer cache as the next step's input."""
        feed = {"input_ids": ids, "attention_mask": mask, **cache}
        if "position_ids" in self.inputs:
            positions = np.maximum(mask.cumsum(-1) - 1, 0)
            feed["position_ids"] = positions[:, -ids.shape[1] :]
        logits, *present = self.session.run(None, feed)
        names = [name.replace("present", "past_key_values") for name in self.outputs[1:]]
        return np.asarray(logits), dict(zip(names, map(np.asarray, present), strict=True))

    def empty_cache(self, batch: int = 1) -> dict[str, NDArray[Any]]:
        return {
            name: np.zeros((batch, item.shape[1], 0, item.shape[3]), dtype=_DTYPES[item.type])
            for name, item in self.inputs.items()
            if name.startswith("past_key_values")
        }


def unrounded(folder: Path) -> ExportedModel:
    """The same graph with activations that are not rounded, so that its logits are exact to five digits."""
    proto = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 1
    onnx.save(proto, str(folder / "exact.onnx"))
    return ExportedModel(folder, "exact.onnx")


def divergence(expected: NDArray[Any], found: NDArray[Any]) -> float:
    """The mean over rows of the Kullback-Leibler divergence, in nats."""
    expected, found = (_log_softmax(np.asarray(rows, dtype=np.float64)) for rows in (expected, found))
    return float((np.exp(expected) * (expected - found)).sum(axis=-1).mean())


def _log_softmax(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    rows = rows - rows.max(axis=-1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))
