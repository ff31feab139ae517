"""The names of the sampling stages, and lists of them in the order in which they apply. This module does not sample."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import cast

from stoker.errors import InvalidInput

USUAL = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "infill", "temperature")
"""The stages in the order that applies where a request gives none; `infill` only if it is on."""
STAGES = (*USUAL, "adaptive_p")

_LETTERS: Mapping[str, str] = dict(zip("edskypmxita", STAGES, strict=True))
_GONE = frozenset({"tfs_z", "f"})
"""Stages that older versions of llama-server had and clients still name; they are ignored."""
_ALIASES: Mapping[str, str] = {
    **{name.replace("_", mark): name for name in (*STAGES, "tfs_z") for mark in ("_", "-", "")},
    **dict.fromkeys(("typ", "typical", "typical_p", "typical-p"), "typ_p"),
    "nucleus": "top_p",
    "temp": "temperature",
}
_MAX_STAGES = 32

OFF: Mapping[str, Mapping[str, float]] = {
    "penalties": {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0},
    "dry": {"dry_multiplier": 0},
    "top_n_sigma": {"top_n_sigma": 0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1},
    "top_p": {"top_p": 1},
    "min_p": {"min_p": 0},
    "xtc": {"xtc_probability": 0},
    "infill": {"infill": False},
    "temperature": {"temperature": 1, "dynatemp_range": 0},
}
"""By stage, the parameters that disable it, with the values that do so."""


def sampler_names(name: str, value: object) -> tuple[str, ...]:
    """The names of the stages of a list, in the words of this module.

    Args:
        name: the parameter that holds the list, for errors.
        value: names of stages, in any of llama-server's spellings; or their letters in one string.

    Raises:
        InvalidInput: it is no such list, it is too long, or a stage is unknown.
    """
    known, asked = (_LETTERS, list(value)) if isinstance(value, str) else (_ALIASES, _texts(name, value))
    if len(asked) > _MAX_STAGES:
        raise InvalidInput(f"`{name}` names {len(asked)} sampling stages, more than {_MAX_STAGES}", parameter=name)
    named = [text for text in asked if known.get(text, text) not in _GONE]
    if unknown := [text for text in named if text not in known]:
        message = f"`{name}` names {unknown[0][:40]!r}, which is not a sampling stage; there are {', '.join(STAGES)}"
        raise InvalidInput(message, parameter=name)
    return tuple(known[text] for text in _spelled_once(named, known))


def _texts(name: str, value: object) -> list[str]:
    is_single = getattr(value, "ndim", 1) == 0  # an array of no dimensions
    is_list = isinstance(value, Collection) and not (is_single or isinstance(value, bytes | bytearray | Mapping))
    items = list(cast("Collection[object]", value)) if is_list else [None]
    if not all(isinstance(item, str) for item in items):
        raise InvalidInput(f"`{name}` must be a list of names of sampling stages", parameter=name)
    return [cast("str", item).lower() for item in items]


def _spelled_once(asked: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """The names without other spellings of a stage that is named already: SillyTavern sends `typ_p` and `typical_p`."""
    first: dict[str, str] = {}
    return [name for name in asked if first.setdefault(known[name], name) == name]


def disabling(samplers: Collection[str]) -> dict[str, float]:
    """The parameters that disable all stages that a list does not name, with their values."""
    return {name: value for stage, off in OFF.items() if stage not in samplers for name, value in off.items()}


def is_usual(samplers: Sequence[str]) -> bool:
    """Whether stages are in the usual order, each at most once."""
    places = [STAGES.index(name) for name in samplers]
    return all(before < behind for before, behind in pairwise(places))
