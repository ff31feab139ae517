"""Lets a graph find weights that lie behind symbolic links, as in the hub's cache. The file stays as it is.

```
snapshots/1a2b/model.onnx       -> ../../blobs/77…
snapshots/1a2b/model.onnx_data  -> ../../blobs/e0…      ONNX Runtime opens no file outside the graph's own folder
```
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from stoker.errors import ModelUnsupported
from stoker.models.onnx_graph import OnnxGraph
from stoker.models.protobuf import Message, edited, spell

_GRAPH, _INITIALIZER, _EXTERNAL_DATA = 7, 5, 13
_KEY, _VALUE = 1, 2


def follow_links(graph: OnnxGraph) -> OnnxGraph:
    """The same graph, if links lead its weights elsewhere with a `content` that names the files they lead to.

    Args:
        graph: read from a file without an error.

    Raises:
        ModelUnsupported: links lead into several folders.
    """
    folder = graph.weights_folder
    real = {file: Path(os.path.realpath(file)) for file in graph.weight_files[1:]}
    if all(file.is_relative_to(os.path.realpath(folder)) for file in real.values()):
        return graph
    folders = {file.parent for file in real.values()}
    if len(folders) > 1:
        listed = ", ".join(sorted(map(str, folders)))
        raise ModelUnsupported(
            f"{graph.path} cannot be run: links lead its weights into several folders ({listed}); put them beside it",
            path=str(graph.path),
        )
    names = {os.fspath(file.relative_to(folder)): target.name for file, target in real.items()}
    data = memoryview(graph.content or graph.path.read_bytes())
    return replace(graph, content=_renamed(data, names), weights_folder=folders.pop())


def _renamed(data: memoryview, names: Mapping[str, str]) -> bytes:
    return edited(data, _GRAPH, lambda whole: edited(whole, _INITIALIZER, lambda tensor: _moved(tensor, names)))


def _moved(tensor: memoryview, names: Mapping[str, str]) -> bytes:
    return edited(tensor, _EXTERNAL_DATA, lambda entry: _entry(entry, names))


def _entry(entry: memoryview, names: Mapping[str, str]) -> bytes:
    pair = Message(entry)
    if pair.text(_KEY) != "location":
        return bytes(entry)
    place = os.path.normpath(pair.text(_VALUE))
    return spell(_KEY, "location") + spell(_VALUE, names.get(place, place))
