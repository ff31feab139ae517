"""llama-server's list of sampling stages: which of them take part. Their order is fixed here, and is its usual one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from stoker.core.params import SamplingParams
from stoker.errors import UnsupportedParameter


@dataclass(frozen=True, slots=True)
class _Stage:
    letter: str
    """In a list that is one string."""
    off: Mapping[str, float]
    """The numbers that switch it off."""


_STAGES: Mapping[str, _Stage] = {
    "penalties": _Stage("e", {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}),
    "dry": _Stage("d", {"dry_multiplier": 0}),
    "top_n_sigma": _Stage("s", {"top_n_sigma": 0}),
    "top_k": _Stage("k", {"top_k": 0}),
    "typ_p": _Stage("y", {"typical_p": 1}),
    "top_p": _Stage("p", {"top_p": 1}),
    "min_p": _Stage("m", {"min_p": 0}),
    "xtc": _Stage("x", {"xtc_probability": 0}),
    "infill": _Stage("i", {"infill": False}),
    "temperature": _Stage("t", {"temperature": 1, "dynatemp_range": 0}),
    "adaptive_p": _Stage("a", {}),
}
"""Stages in the order in which they act. The last one does nothing, because `adaptive_target` cannot be given."""

_PLACE: Mapping[str, int] = {name: place for place, name in enumerate(_STAGES)}
_LETTERS: Mapping[str, str] = {stage.letter: name for name, stage in _STAGES.items()}
_GONE = frozenset({"tfs_z"})
"""Stages that llama-server once had and clients still name; they are ignored."""
_ALIASES: Mapping[str, str] = {
    **{name.replace("_", mark): name for name in (*_STAGES, *_GONE) for mark in ("_", "-", "")},
    **dict.fromkeys(("typ", "typical", "typical_p", "typical-p"), "typ_p"),
    "nucleus": "top_p",
    "temp": "temperature",
}


def with_stages(params: SamplingParams, samplers: str | Sequence[str] | None) -> SamplingParams:
    """The sampling of a request in which only the stages of its list take part; without a list, as it is.

    Mirostat, which has stages of its own, takes no notice of a list.

    Args:
        params: what the request says.
        samplers: names of stages, or the letters of them in one string. None = not given.

    Raises:
        UnsupportedParameter: an unknown stage, or stages that do something in another order than ours.
    """
    if samplers is None or params.mirostat:
        return params
    named = [name for name in _names(samplers) if name not in _GONE]
    off: dict[str, Any] = {}
    for name in _STAGES.keys() - set(named):
        off |= _STAGES[name].off
    active = [name for name in named if not _is_off(name, params)]
    if any(_PLACE[before] >= _PLACE[behind] for before, behind in pairwise(active)):
        ours = ", ".join(name for name in _STAGES if name in active)
        message = f"`samplers` asks for another order than there is, which is {ours}; each of them acts once"
        raise UnsupportedParameter(message, parameter="samplers")
    return replace(params, **off | ({"infill": True} if "infill" in named else {}))


def _is_off(name: str, params: SamplingParams) -> bool:
    """The request itself says so. What it does not say, the model or the server's settings may switch on."""
    off = _STAGES[name].off
    return name != "infill" and all(getattr(params, number) == value for number, value in off.items())


def _names(samplers: str | Sequence[str]) -> list[str]:
    known = _LETTERS if isinstance(samplers, str) else _ALIASES
    asked = list(samplers) if isinstance(samplers, str) else [name.lower() for name in samplers]
    if unknown := [name for name in asked if name not in known]:
        message = f"`samplers` names {unknown[0][:40]!r}, which is no stage here; there are {', '.join(_STAGES)}"
        raise UnsupportedParameter(message, parameter="samplers")
    return [known[name] for name in asked]
