"""`stoker search`: finds models by words of their names, among well-known models and on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from stoker.cli.later import hub, library
from stoker.cli.options import Flags, shared_options
from stoker.cli.report import say
from stoker.cli.table import AsJson, print_rows
from stoker.errors import DownloadFailed

Words = Annotated[
    list[str],
    typer.Argument(metavar="WORDS...", show_default=False, help="Words of the model's name, such as qwen3 coder."),
]
Limit = Annotated[
    int, typer.Option("--limit", "-n", metavar="N", min=1, max=100, help="Maximum number of hub results.")
]

_COLUMNS = {"model": "MODEL", "size_bytes": "SIZE", "downloads": "DOWNLOADS", "license": "LICENSE"}


@shared_options()
def search(flags: Flags, words: Words, limit: Limit = 20, as_json: AsJson = False) -> None:
    """Search for GGUF models. Well-known names come first, then repositories of the hub, the most downloaded first."""
    known = list(_known(words))
    try:
        found = list(_on_hub(words, limit))
    except DownloadFailed as error:
        if not known:
            raise
        say(f"note: only well-known models are listed; {error.message}")
        found = []
    print_rows(_COLUMNS, [*known, *found], is_json=as_json)


def _known(words: list[str]) -> Iterator[dict[str, Any]]:
    for model in library.library().values():
        if all(word.lower() in f"{model.name} {model.repo.lower()} {' '.join(model.abilities)}" for word in words):
            yield {"model": model.name, "size_bytes": model.size_bytes, "license": model.license}


def _on_hub(words: list[str], limit: int) -> Iterator[dict[str, Any]]:
    for found in hub.search_models(" ".join(words), limit=limit):
        yield {"model": found.id, "downloads": found.downloads, "license": found.license}
