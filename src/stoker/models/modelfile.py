"""Reads the files by which Ollama's `create` makes a model. What has no meaning here is refused by its line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from stoker.core.params import SamplingParams
from stoker.errors import InvalidInput
from stoker.models.presets import Preset

_LINE = re.compile(r"(?P<word>[A-Za-z]+)[ \t]+(?P<rest>.*)")
_PARAMETERS = {
    "temperature": ("temperature", float),
    "top_p": ("top_p", float),
    "top_k": ("top_k", int),
    "min_p": ("min_p", float),
    "seed": ("seed", int),
    "num_predict": ("max_tokens", int),
    "repeat_penalty": ("repetition_penalty", float),
    "repeat_last_n": ("penalty_last_n", int),
    "presence_penalty": ("presence_penalty", float),
    "frequency_penalty": ("frequency_penalty", float),
}
_FOREIGN = {
    "TEMPLATE": "Ollama's templates are in Go's language; give a Jinja template with --template, or leave it out",
    "MESSAGE": "example messages are not supported; put them into the system prompt",
}


def read_modelfile(text: str) -> Preset:
    """The preset that a Modelfile describes.

    Raises:
        InvalidInput: a line has no meaning here, or FROM is missing; the message names the line.
    """
    preset = Preset(model="")
    for number, word, value in _instructions(text):
        preset = _applied(preset, number, word.upper(), value)
    if not preset.model:
        raise InvalidInput("the Modelfile has no line FROM, which names the base model")
    return preset


def with_parameters(preset: Preset, parameters: Mapping[str, object]) -> Preset:
    """The preset with parameters by their names in Ollama, as its API takes them; a list is several of one name.

    Raises:
        InvalidInput: a parameter is unknown, or its value is out of range.
    """
    sampling = {name: value for name, value in preset.sampling.items() if name not in parameters}  # `stop` adds up
    preset = msgspec.structs.replace(preset, sampling=sampling)
    for name, given in parameters.items():
        for value in cast("list[object]", given) if isinstance(given, list) else [given]:
            changes = _parameter(preset, f"parameters.{name}", name, str(value))
            preset = msgspec.structs.replace(preset, **changes)
    SamplingParams(**preset.sampling)
    return preset


def modelfile_of(preset: Preset) -> str:
    """The Modelfile that describes a preset; a chat template is not in it."""
    system = [f'SYSTEM """{preset.system}"""'] if preset.system else []
    adapters = [f"ADAPTER {adapter}" for adapter in preset.lora]
    parameters = [f"PARAMETER {line}" for line in parameter_lines(preset)]
    return "\n".join([f"FROM {preset.model}", *system, *adapters, *parameters, ""])


def parameter_lines(preset: Preset) -> list[str]:
    """The parameters of a preset that have a name in Ollama, each with its value."""
    context = [] if preset.ctx_size is None else [f"num_ctx {preset.ctx_size}"]
    stops = [f'stop "{text}"' for text in preset.sampling.get("stop", ())]
    sampling = preset.sampling
    return [*context, *stops, *(f"{name} {sampling[key]}" for name, (key, _) in _PARAMETERS.items() if key in sampling)]


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise InvalidInput(f"line {number} of the Modelfile is not an instruction: {line.strip()[:80]!r}")
        value = found["rest"].strip()
        if value.startswith('"""'):
            value = _block(value[3:], lines)
        yield number, found["word"], value.strip().removeprefix('"').removesuffix('"')


def _block(first: str, lines: Iterator[tuple[int, str]]) -> str:
    """What stands between triple quotes, over as many lines as it takes."""
    parts = [first]
    while '"""' not in parts[-1]:
        _, line = next(lines, (0, '"""'))
        parts.append(line)
    return "\n".join(parts).partition('"""')[0]


def _applied(preset: Preset, number: int, word: str, value: str) -> Preset:
    changes: dict[str, Any]
    match word:
        case "FROM":
            changes = {"model": value}
        case "SYSTEM":
            changes = {"system": value}
        case "ADAPTER":
            changes = {"lora": [*preset.lora, value]}
        case "PARAMETER":
            name, _, text = value.partition(" ")
            changes = _parameter(preset, f"line {number} of the Modelfile, PARAMETER {name}", name, text)
        case "LICENSE":
            changes = {}
        case _:
            why = _FOREIGN.get(word, "it is not supported")
            raise InvalidInput(f"line {number} of the Modelfile, {word}: {why}")
    return msgspec.structs.replace(preset, **changes)


def _parameter(preset: Preset, where: str, name: str, text: str) -> dict[str, Any]:
    value = text.strip().strip('"')
    try:
        if name == "num_ctx":
            return {"ctx_size": int(value)}
        if name == "stop":
            stops: list[str] = [*preset.sampling.get("stop", ()), value]
            return {"sampling": {**preset.sampling, "stop": stops}}
        key, kind = _PARAMETERS[name]
        return {"sampling": {**preset.sampling, key: kind(value)}}
    except KeyError:
        known = ", ".join(("num_ctx", "stop", *_PARAMETERS))
        raise InvalidInput(f"{where}: only {known} are supported") from None
    except ValueError:
        raise InvalidInput(f"{where}: {value!r} is not a number") from None
