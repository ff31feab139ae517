"""`stoker create`: writes a preset, a model with its own system prompt, sampling, chat template or adapters."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli.later import engine_config, modelfile, msgspec, presets, store
from stoker.cli.options import SAMPLING, Flags, System, shared_options
from stoker.cli.report import say
from stoker.errors import InvalidInput, reason_of
from stoker.models.naming import own_name

NewName = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="Name of the preset.")]
From = Annotated[
    str | None,
    typer.Option("--from", "-m", metavar="MODEL", show_default=False, help="Base model: a name, a path, or ORG/REPO."),
]
File = Annotated[
    Path | None,
    typer.Option("--file", "-f", metavar="FILE", show_default=False, help="Ollama Modelfile to read."),
]
TemplateFile = Annotated[
    Path | None,
    typer.Option(
        "--template", metavar="FILE", show_default=False, help="Chat template (Jinja) instead of the model's own."
    ),
]
Lora = Annotated[
    list[str] | None,
    typer.Option("--lora", metavar="NAME=PATH[:SCALE]", show_default=False, help="LoRA adapter; may be repeated."),
]
Context = Annotated[
    int | None,
    typer.Option("--ctx-size", "-c", min=1, metavar="N", show_default=False, help="Context size, in tokens."),
]


@shared_options(SAMPLING, is_configured=False)
def create(
    flags: Flags,
    name: NewName,
    base: From = None,
    file: File = None,
    system: System = None,
    template: TemplateFile = None,
    lora: Lora = None,
    ctx_size: Context = None,
) -> None:
    """Create a preset of a model. A preset is a model with its own system prompt, sampling, chat template or adapters.

    Its name can be used wherever a model is named. Settings in a request take precedence over the preset.
    """
    if base is None and file is None:
        raise InvalidInput("no base model: name it with --from MODEL, or in a Modelfile (--file)", parameter="from")
    preset = presets.Preset(model="") if file is None else modelfile.read_modelfile(_text(file, "--file"))
    sampling = {key: value for key, value in flags.values.items() if key in SAMPLING}
    flags.sampling()  # raises InvalidInput for values out of range
    given: dict[str, Any] = {
        "model": store.lasting_name(base or preset.model),
        "system": system or preset.system,
        "template": _text(template, "--template") if template else preset.template,
        "sampling": {**preset.sampling, **sampling},
        "lora": [*preset.lora, *map(_adapter, lora or ())],
        "ctx_size": ctx_size or preset.ctx_size,
    }
    presets.write_preset(own_name(name), msgspec.structs.replace(preset, **given))
    say(f"created {name}: try `stoker run {name}`")


def _adapter(text: str) -> str:
    """The value of `--lora` with an absolute path, so that the preset works in every working directory."""
    spec = engine_config.adapter_spec(text)
    if not os.path.isfile(spec.path):
        raise InvalidInput(f"--lora: there is no file {spec.path}", parameter="lora")
    name = f"{spec.name}=" if text.startswith(f"{spec.name}=") else ""
    return f"{name}{os.path.abspath(spec.path)}:{spec.scale:f}"


def _text(path: Path, option: str) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"{option}: {path} cannot be read: {reason_of(error)}", parameter=option.lstrip("-")
        ) from error
