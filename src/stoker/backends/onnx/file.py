"""What this backend needs to know of an ONNX file, so that code that parses files need not know this backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol


class GraphValue(Protocol):
    """One input or output. `type` is as numpy calls it; a dimension is a number, or the name of what varies."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> tuple[int | str, ...]: ...


class GraphFile(Protocol):
    """An ONNX file that was read and checked."""

    @property
    def path(self) -> Path: ...
    @property
    def inputs(self) -> Sequence[GraphValue]:
        """Inputs that each run has to supply."""
        ...

    @property
    def outputs(self) -> Sequence[GraphValue]: ...
    @property
    def operators(self) -> Mapping[tuple[str, str], int]:
        """How often each operator occurs, by domain and name."""
        ...

    @property
    def content(self) -> bytes | None:
        """Is to be run instead of what the file holds; its weights are where they are."""
        ...

    @property
    def own_content(self) -> bytes | None:
        """The same with operators of Stoker's own, for who has their library; None = it has no use for them."""
        ...

    @property
    def weights_folder(self) -> Path:
        """Where the places of weights in other files begin."""
        ...

    @property
    def weight_files(self) -> Sequence[Path]:
        """The file itself, then the others that its weights lie in."""
        ...
