"""`stoker show`: prints facts about a model, from its file, the library of well-known models, or a server."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from stoker.cli.answer import write
from stoker.cli.later import aliases, catalog, description, discovery, gguf, library, model_defaults, presets, store
from stoker.cli.options import Flags, Model, shared_options
from stoker.cli.server_client import ApiKey, OtherUrl, ServerClient
from stoker.cli.table import AsJson, print_json, print_table, shown
from stoker.errors import ModelFileNotFound, ModelUnsupported

Template = Annotated[bool, typer.Option("--template", help="Print the chat template alone.")]


@shared_options()
def show(
    flags: Flags,
    model: Model,
    url: OtherUrl = None,
    api_key: ApiKey = None,
    template: Template = False,
    as_json: AsJson = False,
) -> None:
    """Show a model: architecture, size, context, license. Nothing is downloaded."""
    facts = _facts(model) if url is None else ServerClient(url, api_key).post("/api/show", {"model": model})
    if template:
        write(f"{facts.get('chat_template') or facts.get('template') or ''}\n")
    elif as_json:
        print_json(facts)
    else:
        rows = [(key.removesuffix("_bytes"), _one_line(shown(key, value))) for key, value in facts.items()]
        print_table(("FACT", "VALUE"), rows)


def _one_line(text: str) -> str:
    first, _, rest = text.strip().partition("\n")
    return f"{first[:100]} …" if rest or len(first) > 100 else first


def _facts(name: str) -> dict[str, Any]:
    preset = presets.read_presets().get(name)
    if preset is not None:
        return {"name": name, **_preset(preset), **_base(preset.model)}
    return {"name": name, **_base(name)}


def _preset(preset: presets.Preset) -> dict[str, Any]:
    about = {"system": preset.system, "sampling": preset.sampling, "lora": preset.lora, "ctx_size": preset.ctx_size}
    return {"based_on": preset.model, **{key: value for key, value in about.items() if value}}


def _base(name: str) -> dict[str, Any]:
    path, meant = _path_of(name), aliases.read_aliases().get(name, name)
    known = catalog.CATALOG.get(meant.removesuffix(":latest")) or library.known_model(meant)
    if path is None and known is None:
        path = store.resolve(name)  # a path, or an error that says why there is none
    return {**(_known(known) if known else {}), **(_file(path) if path else {"here": False})}


def _path_of(name: str) -> Path | None:
    """The path of a model's file, if it is on this disk."""
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if path.is_dir() and name not in catalog.CATALOG:
        return store.resolve(name)
    plain = name.removesuffix(":latest")
    found = [
        model
        for model in discovery.discover_models(None)
        if plain in model.names or model.names[0].startswith(f"hf:{plain}:")
    ]
    if not found and "/" in plain and not path.exists():
        raise ModelFileNotFound(f"{name} is not downloaded: `stoker pull {name}` downloads it", path=name)
    return found[0].path if found else None


def _known(model: library.KnownModel | catalog.CatalogEntry) -> dict[str, Any]:
    is_own = isinstance(model, catalog.CatalogEntry)
    about = {"title": model.title} if is_own else {"source": model.source, "architecture": model.architecture}
    return {
        **about,
        "license": model.license,
        "can": list(model.abilities),
        "context": model.context,
        "size_bytes": model.size_bytes,
        "memory_bytes": library.needs_of(model).least_bytes,
    }


def _file(path: Path) -> dict[str, Any]:
    if path.suffix.lower() != ".gguf":
        raise ModelUnsupported(f"{path} is not a GGUF file: `stoker show` reads GGUF files only")
    with gguf.read_gguf(path) as file:
        about = description.describe(file)
        defaults = asdict(model_defaults.model_defaults(file))
        recommended = {key: value for key, value in defaults.items() if value is not None}
        license_name = file.get_str("general.license")
    return {
        "title": about.name,
        "architecture": about.architecture,
        "quantization": about.quantization,
        "parameters": about.num_parameters,
        "context": about.trained_context,
        "vocabulary": about.vocab_size,
        "size_bytes": store.size_of_all(store.downloaded_parts(path)),
        **({"license": license_name} if license_name else {}),
        **({"recommended_sampling": recommended} if recommended else {}),
        "chat_template": about.chat_template,
        "path": str(path),
        **_devices(),
        "here": True,
    }


def _devices() -> dict[str, list[str]]:
    """The GPUs that libllama finds on this machine, with name and memory; an empty dict if there are none."""
    from stoker.backends.llama import gpus_by_child

    try:
        found = [str(device) for device in gpus_by_child().devices]
    except ModelUnsupported:
        found = []
    return {"devices": found} if found else {}
