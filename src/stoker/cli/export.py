"""`stoker export`: writes a model as an ONNX folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stoker.cli.answer import write
from stoker.cli.download_bar import DownloadBar
from stoker.cli.options import Flags, shared_options
from stoker.cli.report import say
from stoker.errors import InvalidInput

if TYPE_CHECKING:
    from stoker.export import ExportReport

GGUFModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        help="A name from `stoker models`, a path to a .gguf file, or ORG/REPO[:FILE] on the hub.",
    ),
]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", show_default=False, help="Where to; made if it is missing.")]
AttentionOption = Annotated[
    Literal["gqa", "plain"],
    typer.Option(
        "--attention",
        show_default=False,
        help="gqa = ONNX Runtime's fused operators; plain = ONNX's own, for other runtimes. [default: gqa]",
    ),
]
KVTypeOption = Annotated[
    Literal["f32", "f16"],
    typer.Option("--kv-type", show_default=False, help="How keys and values go in and come out. [default: f32]"),
]
WeightsOption = Annotated[
    Literal["keep", "f16", "f32", "int4", "int8"],
    typer.Option(
        "--weights",
        show_default=False,
        help="keep = exactly the numbers of the file; the others round where they must. [default: keep]",
    ),
]
ActivationsOption = Annotated[
    Literal["int8", "f32"],
    typer.Option(
        "--activations",
        show_default=False,
        help="To what inputs of quantised matrices are rounded; f32 = not at all, exact but slow. [default: int8]",
    ),
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--ctx-size", min=1, show_default=False, help="Longest sequence, in tokens. [default: what the model knows]"
    ),
]
Force = Annotated[bool, typer.Option("--force", help="The folder need not be empty; files in it may be replaced.")]


@shared_options()
def export(
    flags: Flags,
    model: GGUFModel,
    folder: Folder,
    attention: AttentionOption = "gqa",
    kv_type: KVTypeOption = "f32",
    weights: WeightsOption = "keep",
    activations: ActivationsOption = "int8",
    ctx_size: ContextOption = None,
    force: Force = False,
) -> None:
    """Write a model as an ONNX folder, for ONNX Runtime and everything that is built on it."""
    try:
        from stoker.export import ExportOptions, export_model
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise InvalidInput("`stoker export` needs the package onnx: pip install 'stoker[export]'") from None
    from stoker.models.store import resolve

    options = ExportOptions(
        attention=attention, kv_type=kv_type, weights=weights, activations=activations, context_size=ctx_size
    )
    path = resolve(model, progress=DownloadBar())
    _say_what(export_model(path, folder, options, force=force, progress=DownloadBar()))
    write(f"{folder}\n")


def _say_what(report: ExportReport) -> None:
    for part in report.matrices:
        error = f"rounded by {part.relative_error:.2%}" if part.relative_error else "exact"
        say(f"{part.count} matrices of {part.type}: {part.form}, {error}")
    say(f"{report.num_bytes / 1e6:.0f} MB, for sequences of up to {report.context_size} tokens")
