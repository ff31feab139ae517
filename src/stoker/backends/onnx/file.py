"""The interface to an ONNX file that this backend needs. The ONNX parser satisfies it without importing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol


class GraphValue(Protocol):
    """One input or output of a graph. `type` is numpy's name; a dimension is a number, or a name if its size varies."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> tuple[int | str, ...]: ...


class GraphFile(Protocol):
    """An ONNX file with a graph, which has been read and checked."""

    @property
    def path(self) -> Path: ...
    @property
    def inputs(self) -> Sequence[GraphValue]:
        """The inputs that each run must supply."""
        ...

    @property
    def outputs(self) -> Sequence[GraphValue]: ...
    @property
    def operators(self) -> Mapping[tuple[str, str], int]:
        """The number of occurrences of each operator, by domain and name."""
        ...

    @property
    def content(self) -> bytes | None:
        """A serialized graph to run instead of the file's, with the same places of weights. None = the file's graph."""
        ...

    @property
    def own_content(self) -> bytes | None:
        """A serialized graph with Stoker's own operators, which need their library; None = it cannot use them."""
        ...

    @property
    def weights_folder(self) -> Path:
        """The folder to which the paths of external weight files are relative."""
        ...

    @property
    def weight_files(self) -> Sequence[Path]:
        """The file itself, then the external files that contain its weights."""
        ...
