"""Compiles the sampling parameters of a request to its stages, in llama.cpp's order or in the order of the request.

```
edits of the row                            stages of candidates                              the pick
logit bias, bans, [penalties, DRY] ──►  top-n-sigma, top-k, typical-p, …, temperature  ──►  random, Mirostat, adaptive-p
```

Penalties and DRY are edits as long as no stage of candidates comes before them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from stoker.core.params import SamplingParams
from stoker.core.samplers import USUAL
from stoker.sampling.dry import Dry
from stoker.sampling.edits import Edit, HistoryEdit, Late, LogitBias, MinTokens, Vocabulary
from stoker.sampling.infill import Infill
from stoker.sampling.penalties import Penalties
from stoker.sampling.pickers import AdaptiveP, Picker, compile_mirostat, pick_largest, pick_randomly
from stoker.sampling.transforms import XTC, MinP, Temperature, TopK, TopNSigma, TopP, Transform, TypicalP

_ALWAYS = (LogitBias.compile, MinTokens.compile)
_HISTORIES: Mapping[str, Callable[[SamplingParams, Vocabulary, Sequence[int]], HistoryEdit | None]] = {
    "penalties": Penalties.compile,
    "dry": Dry.compile,
}
_TRANSFORMS: Mapping[str, Sequence[Callable[[SamplingParams], Transform | None]]] = {
    "top_n_sigma": (TopNSigma.compile,),
    "top_k": (TopK.compile,),
    "typ_p": (TypicalP.compile,),
    "top_p": (TopP.compile,),
    "min_p": (MinP.compile,),
    "xtc": (XTC.compile,),
    "temperature": (Temperature.compile,),
}
"""The transforms of each stage, in order. A transform that llama.cpp does not have shares the stage of another one."""
_OF_MIROSTAT = ("penalties", "dry", "temperature")


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages of one request.

    Attributes:
        edits: edits of the row.
        transforms: stages of candidates; `Late` edits are among them.
        late: the edits among `transforms`, which need the tokens of the sequence, too.
        pick: the last stage.
    """

    edits: tuple[Edit, ...]
    transforms: tuple[Transform, ...]
    late: tuple[Edit, ...]
    pick: Picker


def compile_stages(params: SamplingParams, vocabulary: Vocabulary, prompt: Sequence[int]) -> Stages:
    """The stages that complete params ask for.

    Args:
        params: complete parameters.
        vocabulary: the model's tokens.
        prompt: the tokens before the first one to be chosen.

    Raises:
        InvalidInput: a sequence breaker of DRY is empty.
    """
    edits: list[Edit] = [edit for compiled in _ALWAYS if (edit := compiled(params, vocabulary, prompt)) is not None]
    transforms: list[Transform] = []
    late: list[Edit] = []
    seen: dict[str, HistoryEdit | None] = {}  # a stage that is named twice acts twice, and has one history
    for name in _names(params):
        if name in _HISTORIES:
            is_new = name not in seen
            edit = seen[name] = _HISTORIES[name](params, vocabulary, prompt) if is_new else seen[name]
            if edit is not None and is_new:
                (late if transforms else edits).append(edit)
            if edit is not None and (transforms or not is_new):
                transforms.append(Late(edit))
        else:
            transforms += _compiled(name, params, vocabulary)
    if _is_greedy(transforms):
        return Stages(tuple(edits), (), (), pick_largest)
    pick = compile_mirostat(params, vocabulary.size) or _adaptive(params) or pick_randomly
    return Stages(tuple(edits), tuple(_levelled(transforms)), tuple(late), pick)


def _names(params: SamplingParams) -> Sequence[str]:
    if params.mirostat:
        return _OF_MIROSTAT
    if params.samplers is not None:
        return [name for name in params.samplers if name != "adaptive_p"]
    return [name for name in USUAL if name != "infill" or params.infill]


def _compiled(name: str, params: SamplingParams, vocabulary: Vocabulary) -> list[Transform]:
    if name == "infill":
        found = [Infill.compile(params, vocabulary)]
    else:
        found = [compile_transform(params) for compile_transform in _TRANSFORMS[name]]
    return [transform for transform in found if transform is not None]


def _is_greedy(transforms: Sequence[Transform]) -> bool:
    """Whether the largest logit is the choice: a temperature of 0 leaves it alone, and no stage may drop or add one."""
    is_greedy = any(isinstance(stage, Temperature) and stage.is_greedy for stage in transforms)
    return is_greedy and not any(isinstance(stage, TypicalP | XTC | Infill | Late) for stage in transforms)


def _adaptive(params: SamplingParams) -> AdaptiveP | None:
    return AdaptiveP.compile(params) if "adaptive_p" in (params.samplers or ()) else None


def _levelled(transforms: Sequence[Transform]) -> list[Transform]:
    """The stages; a temperature before penalties keeps the level of logits, on which these depend."""
    last = max((i for i, stage in enumerate(transforms) if isinstance(stage, Late)), default=0)
    return [
        replace(stage, keeps_level=True) if i < last and isinstance(stage, Temperature) else stage
        for i, stage in enumerate(transforms)
    ]
