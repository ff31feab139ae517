"""`stoker quantize`: writes a GGUF file with smaller weights."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from stoker.cli.answer import write
from stoker.cli.download_bar import DownloadBar
from stoker.cli.later import gguf, llama_quantize, store
from stoker.cli.options import Flags, shared_options
from stoker.cli.report import say
from stoker.cli.table import size
from stoker.errors import InvalidInput

Source = Annotated[
    str,
    typer.Argument(metavar="MODEL", show_default=False, help="GGUF file or name of a model, best with F16 weights."),
]
Target = Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="GGUF file to write.")]
Kind = Annotated[
    str, typer.Argument(metavar="TYPE", help="Quantization, such as Q4_K_M, Q5_K_M, Q6_K, Q8_0, IQ4_XS or F16.")
]
Threads = Annotated[int | None, typer.Option("--threads", "-t", min=1, max=512, metavar="N", help="Number of threads.")]
Requantize = Annotated[
    bool, typer.Option("--requantize", help="Allow a MODEL that is already quantized, at a loss of quality.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")]


@shared_options()
def quantize(
    flags: Flags,
    model: Source,
    file: Target,
    kind: Kind = "Q4_K_M",
    threads: Threads = None,
    requantize: Requantize = False,
    force: Force = False,
) -> None:
    """Quantize a GGUF file. This needs libllama (extra `llama`)."""
    if kind.upper() not in llama_quantize.FILE_TYPES:
        known = ", ".join(llama_quantize.FILE_TYPES)
        raise InvalidInput(f"TYPE must be one of {known}, not {kind!r}", parameter="type")
    if file.exists() and not force:
        raise InvalidInput(f"{file} exists already; --force replaces it", parameter="file")
    source = store.resolve(model, progress=DownloadBar())
    if file.exists() and source.samefile(file):
        raise InvalidInput(f"{file} is the model itself; write to another file", parameter="file")
    gguf.read_gguf(source).close()
    if not logging.getLogger().isEnabledFor(logging.INFO):
        # libllama logs every matrix that gets another type, and an error with the text of the exception.
        logging.getLogger("stoker.llama").setLevel(logging.CRITICAL)
    part = file.with_name(f".{file.name}.part")
    try:
        llama_quantize.quantize(source, part, kind.upper(), threads=threads, requantizes=requantize)
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
    say(f"{size(source.stat().st_size)} became {size(file.stat().st_size)}")
    write(f"{file}\n")
