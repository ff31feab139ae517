"""Where the parts of an ONNX model lie: its graph and the JSON files around it. It opens no graph.

```
optimum             FOLDER/model.onnx, config.json, tokenizer.json …
onnx-community      FOLDER/onnx/model_q4f16.onnx, model_quantized.onnx …; FOLDER/config.json …
GenAI's builder     FOLDER/model.onnx, model.onnx.data, genai_config.json, tokenizer.json …
models that see     embed_tokens_q4.onnx, vision_encoder_q4.onnx beside decoder_model_merged_q4.onnx
```
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import ModelFileNotFound
from stoker.models.json_folder import JSONFolder

_EXPORT = "onnx-export"
_GRAPH_FOLDERS = ("", "onnx", _EXPORT)
_MAX_ANCESTORS = 3
_PACKAGE = "metadata.json"
"""The mark of a package, whose root may lie any number of folders above its graph."""
_ROOT_MARKS = ("genai_config.json", "config.json", "tokenizer.json")
_PREFERRED = ("q4", "quantized", "int8", "", "q4f16", "fp16", "uint8", "bnb4")
"""Variants on CPUs: few bits in blocks first, as they are fastest there and lose little."""
_NAMES = ("decoder_model_merged", "decoder_with_past_model", "decoder", "model")
"""Stems that stand for the whole language model; of several the last."""
TABLE, VISION = "embed_tokens", "vision_encoder"
"""Stems of graphs that make rows: of token ids, and of images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxFolder(JSONFolder):
    """One model."""

    graph: Path

    @property
    def name(self) -> str:
        """What the folder of the model is called."""
        return self.folders[-2].resolve().name or self.graph.stem

    def beside(self, stem: str) -> Path | None:
        """The graph with this stem that goes with the model's own, see `graph_beside`."""
        with suppress(OSError):
            found = graph_beside(self.graph.name, [file.name for file in self.graph.parent.glob("*.onnx")], stem)
            return None if found is None else self.graph.parent / found
        return None


def is_onnx_model(path: Path) -> bool:
    """A `.onnx` file, or a folder that holds one where models have them."""
    if os.path.isdir(path):
        return any(_graphs_in(path))
    return path.suffix.lower() == ".onnx"


def open_onnx_folder(path: Path, variant: str = "") -> OnnxFolder:
    """Finds the graph and the folders around it.

    Args:
        path: a `.onnx` file or a folder.
        variant: which of several graphs of a folder, such as `q4f16`, `fp32` or a whole file name; empty: the one that
            `genai_config.json` names, else the one that suits a CPU best.

    Raises:
        ModelFileNotFound: there is no such graph, or several could be meant; the message lists them.
    """
    graph = path if path.is_file() else _choose(path, variant)
    folder = graph.parent
    root = _root(folder)
    return OnnxFolder(graph=graph, folders=(folder, folder / _EXPORT, root, root / _EXPORT))


def choose_graph(files: Sequence[str], variant: str = "") -> str | None:
    """The one of these `.onnx` files that a variant means; None if none or several do.

    Args:
        files: paths in a folder or repository.
        variant: as for `open_onnx_folder`.
    """
    if variant:
        fitting = [file for file in files if variant in (Path(file).name, Path(file).stem, _variant(file))]
        if not fitting and variant == "fp32":
            return choose_graph([file for file in files if _variant(file) == ""])
        return fitting[0] if len(fitting) == 1 else None
    if len(files) == 1:
        return files[0]
    for name in reversed(_NAMES):
        for preferred in _PREFERRED:
            wanted = f"{name}_{preferred}" if preferred else name
            fitting = [file for file in files if Path(file).stem == wanted]
            if len(fitting) == 1:
                return fitting[0]
    return None


def graph_beside(graph: str, files: Sequence[str], stem: str) -> str | None:
    """The graph `stem` in the folder of a decoder: of the decoder's variant, else the one that suits a CPU best.

    Args:
        graph: the decoder.
        files: paths, written as the decoder's is.
        stem: `TABLE` or `VISION`.
    """
    beside = [file for file in sorted(files) if file.endswith(".onnx") and Path(file).parent == Path(graph).parent]
    found = {rest.lstrip("_"): file for file in beside if (rest := _behind(stem, Path(file).stem)) is not None}
    return next((found[variant] for variant in (_variant(graph), *_PREFERRED, *found) if variant in found), None)


def _behind(stem: str, name: str) -> str | None:
    """What a name has behind a stem; None = it has another stem."""
    return name.removeprefix(stem) if name == stem or name.startswith(f"{stem}_") else None


def _choose(folder: Path, variant: str) -> Path:
    graphs = [file.relative_to(folder).as_posix() for file in _graphs_in(folder)]
    named = None if variant else _named_by_genai(folder)
    chosen = named or choose_graph(graphs, variant)
    if chosen is None:
        listed = "".join(f"\n  {graph}" for graph in graphs) or "\n  none"
        wanted = f"no single graph for the variant {variant!r}" if variant else "no graph that is clearly meant"
        raise ModelFileNotFound(f"{folder} has {wanted}. Graphs there:{listed}", path=str(folder))
    return folder / chosen


def _named_by_genai(folder: Path) -> str | None:
    config = JSONFolder(folders=(folder,)).read_json("genai_config.json")
    try:
        name: object = config["model"]["decoder"]["filename"]
    except (KeyError, TypeError):
        return None
    return name if isinstance(name, str) and (folder / name).is_file() else None


def _graphs_in(folder: Path) -> list[Path]:
    found: list[Path] = []
    for name in _GRAPH_FOLDERS:
        with suppress(OSError):  # a folder that may not be read has none for us
            found += [file for file in (folder / name).glob("*.onnx") if file.is_file()]
    return sorted(found)


def _variant(file: str) -> str:
    """`onnx/model_q4f16.onnx` -> `q4f16`."""
    stem = Path(file).stem
    names = sorted(_NAMES, key=len, reverse=True)
    return next((stem[len(name) :].lstrip("_") for name in names if stem.startswith(name)), stem)


def _root(folder: Path) -> Path:
    """The nearest folder upwards that is a model's, by the strongest mark."""
    every = (folder, *folder.absolute().parents)
    packaged = (place for place in every if (place / _PACKAGE).is_file())
    near = (place for mark in _ROOT_MARKS for place in every[:_MAX_ANCESTORS] if (place / mark).is_file())
    return next(packaged, None) or next(near, folder)
