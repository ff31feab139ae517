"""An image or a recording that a prompt refers to. It is a value: nothing here reads what is in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

MediaKind: TypeAlias = Literal["image", "audio"]


@dataclass(frozen=True, slots=True)
class Media:
    """A file that stands in a prompt wherever the prompt's text has its marker."""

    kind: MediaKind
    marker: str
    """Text made from the content: equal files have equal markers."""
    data: bytes
    """The file as it was sent."""
