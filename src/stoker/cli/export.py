"""`stoker export`: writes a model as an ONNX folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from stoker.cli.answer import write
from stoker.cli.download_bar import DownloadBar
from stoker.cli.later import exporter, store
from stoker.cli.options import Flags, shared_options
from stoker.cli.report import say
from stoker.errors import InvalidInput

GGUFModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        help="Name from `stoker models`, path of a .gguf file, or ORG/REPO[:FILE] on the hub.",
    ),
]
Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", show_default=False, help="Folder to write; it is created if needed.")
]
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
    typer.Option(
        "--kv-type", show_default=False, help="KV cache data type of the graph's inputs and outputs. [default: f32]"
    ),
]
WeightsOption = Annotated[
    Literal["keep", "f16", "f32", "int4", "int8"],
    typer.Option(
        "--weights",
        show_default=False,
        help="Data type of the weights; keep = the exact values of the file, others may round. [default: keep]",
    ),
]
ActivationsOption = Annotated[
    Literal["int8", "f32"],
    typer.Option(
        "--activations",
        show_default=False,
        help="Activation precision for quantized matmuls; f32 is exact but slow. [default: int8]",
    ),
]
ContextOption = Annotated[
    int | None,
    typer.Option(
        "--ctx-size",
        metavar="N",
        min=1,
        show_default=False,
        help="Context size, in tokens. [default: what the model was trained with]",
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Write into a folder that is not empty; its files may be replaced.")
]


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
    """Export a model as an ONNX folder. ONNX Runtime and programs built on it can read it."""
    try:
        options = exporter.ExportOptions(
            attention=attention, kv_type=kv_type, weights=weights, activations=activations, context_size=ctx_size
        )
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise InvalidInput("`stoker export` needs the package onnx: pip install 'stoker[export]'") from None
    path = store.resolve(model, progress=DownloadBar())
    _say_what(exporter.export_model(path, folder, options, force=force, progress=DownloadBar()))
    write(f"{folder}\n")


def _say_what(report: exporter.ExportReport) -> None:
    for part in report.matrices:
        error = f"rounded by {part.relative_error:.2%}" if part.relative_error else "exact"
        say(f"{part.count} matrices of {part.type}: {part.form}, {error}")
    say(f"{report.num_bytes / 1e6:.0f} MB, for sequences of up to {report.context_size} tokens")
