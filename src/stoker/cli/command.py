"""How a command shows its options, and what it answers to an option of another program."""

from __future__ import annotations

from typing import Any, cast

import typer
from typer.core import TyperCommand

from stoker.cli.meanings import meanings

UsageError = cast("type[Exception]", typer.BadParameter.__base__)
"""Of Click, which newer versions of Typer bring along: neither has a public name for it that both know."""

SYNONYMS = {
    "--temp": "--temperature",
    "--n-predict": "--max-tokens",
    "--num-predict": "--max-tokens",
    "--predict": "--max-tokens",
    "--n-gpu-layers": "--gpu-layers",
    "--num-gpu": "--gpu-layers",
    "-ngl": "--gpu-layers",
    "--ctx": "--ctx-size",
    "--num-ctx": "--ctx-size",
    "--max-model-len": "--ctx-size",
    "--context-length": "--ctx-size",
    "--n-ctx": "--ctx-size",
    "--num-thread": "--threads",
    "--max-num-seqs": "--parallel",
    "-np": "--parallel",
    "--kv-cache-dtype": "--kv-type",
    "-ctk": "--cache-type-k",
    "-ctv": "--cache-type-v",
    "-fa": "--flash-attn",
    "-sm": "--split-mode",
    "-mg": "--main-gpu",
    "-ts": "--tensor-split",
    "--draft-max": "--max-draft",
    "--system-prompt": "--system",
    "-sys": "--system",
    "--served-model-name": "--name",
    "--lora-modules": "--lora",
    "--ssl-certfile": "--tls-certificate",
    "--ssl-cert-file": "--tls-certificate",
    "--ssl-keyfile": "--tls-key",
    "--ssl-key-file": "--tls-key",
    "--allowed-origins": "--cors-origins",
    "--api-prefix": "--root-path",
    "--uds": "--unix-socket",
    "--model": "MODEL",
    "--hf-repo": "MODEL",
    "-m": "MODEL",
    "-hf": "MODEL",
    "-hfr": "MODEL",
    "--prompt": "PROMPT",
    "-p": "PROMPT",
}
"""Options of llama.cpp, Ollama and vLLM, and what they are called here; a name in capitals is an argument."""


_LAST_PANELS = ("Cache", "Measurement", "General", "GPU and ONNX", "Advanced")
"""All others come before these, in the order of their first option."""


class Command(TyperCommand):
    """A command whose help has one section per panel, without the time that it takes to import `rich`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            if hint := self._hint(ctx, given):
                raise UsageError(hint, ctx) from error
            raise

    def _hint(self, ctx: Any, args: list[str]) -> str | None:
        """What to use instead of the first option that another program has, if this command has its like."""
        parameters: list[Any] = self.get_params(ctx)
        names = {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}
        arguments = " ".join(
            str(parameter.metavar) for parameter in parameters if not parameter.opts[0].startswith("-")
        )
        for option in (arg.partition("=")[0] for arg in args):
            ours = SYNONYMS.get(option, "")
            if option not in names and ours in names:
                return f"No such option: {option}. Did you mean {ours}?"
            if option not in names and ours and ours in arguments:
                return f"No such option: {option}. Give it as the argument {ours}, without an option."
        return None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the arguments, and then each panel; rarely needed ones last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in cast("list[Any]", self.get_params(ctx)):
            if (record := _help_record(parameter, ctx)) is not None:
                sections.setdefault(_panel(parameter), []).append(record)
        for panel in sorted(sections, key=_rank):
            with formatter.section(panel):
                formatter.write_dl(sections[panel])


def _help_record(parameter: Any, ctx: Any) -> tuple[str, str] | None:
    if parameter.help is None:
        parameter.help = meanings().get(parameter.name)
    return parameter.get_help_record(ctx)


def _panel(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    return getattr(parameter, "rich_help_panel", None) or "Options"


def _rank(panel: str) -> int:
    return _LAST_PANELS.index(panel) + 1 if panel in _LAST_PANELS else 0
