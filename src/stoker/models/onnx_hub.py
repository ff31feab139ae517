"""Which files of a hub repository make up an ONNX model. It sends no request: it is given the names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from stoker.models.onnx_folder import TABLE, VISION, graph_beside

_TEXTS = (
    "config.json",
    "generation_config.json",
    "genai_config.json",
    "metadata.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
)
_NOTE = ".parts-"


def is_graph(file: str) -> bool:
    """A name that an ONNX graph could have."""
    return file.lower().endswith(".onnx")


def onnx_parts(files: Sequence[str], graph: str) -> list[str]:
    """The graph and those that make rows for it, the files with their weights, and what is known of the model.

    Args:
        files: all files of the repository.
        graph: one of them.
    """
    place = PurePosixPath(graph)
    folders = {place.parent, *place.parent.parents}
    others = [graph_beside(graph, files, stem) for stem in (TABLE, VISION)]
    graphs = [graph, *(file for file in others if file is not None)]
    data = [file for file in files if any(file.startswith((f"{one}_data", f"{one}.data")) for one in graphs)]
    texts = [file for file in files if PurePosixPath(file).name in _TEXTS and PurePosixPath(file).parent in folders]
    return [*graphs, *sorted(data), *sorted(texts)]


def parts_note(graph: Path) -> Path:
    """Where it is remembered which files a downloaded graph consists of, one a line, from the repository's root."""
    return graph.with_name(f"{_NOTE}{graph.name}")
