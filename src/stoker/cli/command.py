"""The class of all commands: shows options and examples in the help, and knows options of llama.cpp, Ollama and vLLM.

It declares no option.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import typer
from typer.core import TyperCommand

EXAMPLES: Mapping[str, Sequence[str]] = {
    "run": (
        "stoker run smollm2                          chat on a terminal",
        'stoker run smollm2 "Name three colors."     one answer',
        'cat notes.txt | stoker run smollm2 "Summarize:"',
    ),
    "chat": (
        "stoker chat smollm2",
        'stoker chat smollm2 -s "Answer in one sentence." --temperature 0',
        "stoker chat smollm2 --continue",
    ),
    "serve": (
        "stoker serve                                everything that was pulled, loaded on demand",
        "stoker serve smollm2 --port 8000",
        "stoker serve --models-dir ~/models --keep-alive 10m",
    ),
    "cluster serve": (
        "stoker cluster serve smollm2 --replicas 2 --threads 1",
        "stoker cluster serve smollm2 --replicas 0-4 --address auto --kv-type f16 --api-key-file keys",
        "stoker cluster serve smollm2 --fronts 2 --kv-dir /shared/kv",
    ),
    "pull": ("stoker pull qwen3:4b", "stoker pull ORG/REPO:Q8_0"),
    "models": ("stoker models", "stoker models --all"),
    "list": ("stoker list", "stoker list --url http://127.0.0.1:8080 --json"),
    "show": ("stoker show qwen3:4b", "stoker show smollm2 --template"),
    "create": (
        'stoker create pirate --from smollm2 -s "You are a pirate." --temperature 0.9',
        "stoker create mario --file ./Modelfile",
    ),
    "cp": ("stoker cp qwen3:4b gpt-4o",),
    "rm": ("stoker rm qwen3:4b",),
    "ps": ("stoker ps", "stoker ps --url http://server:8080"),
    "stop": ("stoker stop qwen3:4b",),
    "quantize": ("stoker quantize model-f16.gguf model-Q4_K_M.gguf Q4_K_M",),
    "search": ("stoker search qwen3 coder", "stoker search embeddings --limit 5"),
}
"""Command -> lines of the section Examples in its help."""


UsageError = cast("type[Exception]", typer.BadParameter.__base__)
"""Click's `UsageError`. Newer versions of Typer contain Click, so that no import path works with all versions."""

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
    "--model-draft": "--draft-model",
    "-md": "--draft-model",
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
    "--model-path": "MODEL",
    "--hf": "MODEL",
    "--max-new-tokens": "--max-tokens",
    "--max-model-length": "--ctx-size",
    "--context-size": "--ctx-size",
    "--ctx-len": "--ctx-size",
    "--n-parallel": "--parallel",
    "--num-parallel": "--parallel",
    "--threads-http": "--max-connections",
    "--num-threads": "--threads",
    "--n-threads": "--threads",
    "--alias-name": "--name",
    "--keepalive": "--keep-alive",
    "--max-loaded-models": "--models-max",
    "--api-keys": "--api-key",
    "--tensor-parallel-size": "--tensor-split",
    "--gpu-memory-utilization": "--memory-budget",
    "--alias": "--name",
    "-a": "--name",
    "--chat-template": "--chat-template-file",
    "--no-webui": "--no-ui",
    "--flash-attention": "--flash-attn",
    "--keep_alive": "--keep-alive",
    "--num_ctx": "--ctx-size",
    "--num_predict": "--max-tokens",
    "--nowordwrap": "--plain",
    "--format": "--schema",
    "--speculative-model": "--draft-model",
    "--root_path": "--root-path",
    "--hidethinking": "--no-think",
    "--prompt": "PROMPT",
    "-p": "--port",
    "--listen": "--host",
    "--allowed-local-media-path": "--media-path",
    "--bind": "--host",
}
"""Options of llama.cpp, Ollama and vLLM -> their names in Stoker; a name in capitals is a positional argument."""


UNNEEDED = {
    "--jinja": "chat templates are always used",
    "--metrics": "metrics are always at /metrics",
    "--props": "properties are always at /props",
    "--embedding": "an embedding model is recognized by its file",
    "--embeddings": "an embedding model is recognized by its file",
    "--reranking": "a reranking model is recognized by its file",
    "--rerank": "a reranking model is recognized by its file",
    "--enable-prefix-caching": "the prefix cache is always on",
    "--cache-prompt": "the prefix cache is always on",
    "--cache-reuse": "the prefix cache is always on",
    "--enable-chunked-prefill": "long prompts are always computed in parts",
    "-cb": "continuous batching is always on",
    "--cont-batching": "continuous batching is always on",
    "-b": "the size of a batch follows from the time that a step takes",
    "--batch-size": "the size of a batch follows from the time that a step takes",
    "-ub": "the size of a batch follows from the time that a step takes",
    "--ubatch-size": "the size of a batch follows from the time that a step takes",
    "--max-num-batched-tokens": "the size of a batch follows from the time that a step takes",
    "--enable-auto-tool-choice": "tool calls are always available; --tool-format names their format",
    "--tool-call-parser": "the format of tool calls follows from the chat template; --tool-format names another one",
    "--reasoning-parser": "reasoning is recognized by the chat template",
    "--reasoning-format": "reasoning is recognized by the chat template",
    "--trust-remote-code": "code of models is never run",
    "--dtype": "the data type of the weights is that of the file; `stoker quantize` writes another one",
    "--quantization": "the quantization is that of the file; `stoker quantize` writes another one",
    "--no-mmap": "memory mapping is chosen by the backend",
    "--mlock": "weights stay in memory while the model is loaded",
    "--no-context-shift": "the context is never shifted",
    "--download-dir": "models are stored in the folder that the environment variable STOKER_CACHE_DIR names",
    "--disable-log-requests": "requests are logged at log level info only",
    "--conversation": "without PROMPT, a terminal gets a conversation",
    "-cnv": "without PROMPT, a terminal gets a conversation",
    "-i": "without PROMPT, a terminal gets a conversation",
    "--interactive": "without PROMPT, a terminal gets a conversation",
}
"""Options of llama.cpp, Ollama and vLLM that have no equivalent in Stoker -> why none is needed."""


_LAST_PANELS = ("Cache", "Measurement", "Options", "General", "GPU and ONNX", "Advanced")
"""Help sections (panels) that come last, in this order. All others precede them, in the order of their first option."""


_ALL = "--help-all"
_COMMON = frozenset(
    (
        *("backend", "ctx_size", "threads", "parallel", "system", "host", "port", "name", "models_dir", "keep_alive"),
        *("api_key", "temperature", "top_p", "seed", "max_tokens", "kv_cache_dir", "config", "verbose"),
    )
)
"""Settings that the short help of a command with many options shows."""
_MANY = 24
"""A command with more options and arguments has a short help (`--help`) and a full help (`--help-all`)."""
_TYPES = {"<int>": "N", "<float>": "X", "<str>": "TEXT", "<path>": "PATH"}
_CHOICES = re.compile(r"<([^<>]*\|[^<>]*)>")
_RANGE = re.compile(r"\s*(?P<before>[\[;]\s?)(?:(?P<low>[\d.]+)<=x<=(?P<high>[\d.]+)|x>=(?P<least>[\d.]+))(?=\])")


class Command(TyperCommand):
    """A command whose help has one section per panel of options. It does not import `rich`, which takes time."""

    _shows_all = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = list(args)
        if _ALL in args[: args.index("--") if "--" in args else None]:
            self._shows_all = True
            args = ["--help"]
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            if hint := self._hint(ctx, given):
                raise UsageError(hint, ctx) from error
            cast("Any", error).ctx = ctx  # not all of Click's errors name the command whose help explains the option
            raise

    def _hint(self, ctx: Any, args: list[str]) -> str | None:
        """A message for the first option of another program: what to use instead, or why it is not needed; or None."""
        parameters = _parameters(self, ctx)
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
            if option not in names and option in UNNEEDED:
                return f"No such option: {option}. It is not needed: {UNNEEDED[option]}."
        return None

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS]` and the name of each argument, in brackets if the argument is optional."""
        arguments = (parameter for parameter in _parameters(self, ctx) if parameter.param_type_name == "argument")
        return ["[OPTIONS]", *(_in_usage(argument) for argument in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes a section for the arguments, then one for each panel of options; rarely needed panels come last."""
        parameters = _parameters(self, ctx)
        is_short = not self._shows_all and len(parameters) > _MANY
        shown = [parameter for parameter in parameters if not is_short or _is_common(parameter)]
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in shown:
            if (record := _help_record(parameter, ctx)) is not None:
                sections.setdefault(_panel(parameter), []).append(record)
        for panel in sorted(sections, key=_rank):
            with formatter.section(panel):
                formatter.write_dl(sections[panel])
        if is_short:
            formatter.write(f"\n{len(parameters) - len(shown)} more options: {ctx.command_path} {_ALL}\n")

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Writes examples that can be pasted, and the exit codes."""
        examples = EXAMPLES.get(ctx.command_path.partition(" ")[2], ())
        if examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"{'':{formatter.current_indent}}{line}\n" for line in examples))
        super().format_epilog(ctx, formatter)


def _parameters(command: TyperCommand, ctx: Any) -> list[Any]:
    """The visible parameters: a hidden option exists only so that the command can refuse it with a reason."""
    every = cast("list[Any]", command.get_params(ctx))
    return [parameter for parameter in every if not getattr(parameter, "hidden", False)]


def _is_common(parameter: Any) -> bool:
    return parameter.name in _COMMON or _panel(parameter) in ("Arguments", "Options")


def _in_usage(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper())
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _help_record(parameter: Any, ctx: Any) -> tuple[str, str] | None:
    if parameter.help is None:
        parameter.help = meanings().get(parameter.name)
    record = parameter.get_help_record(ctx)
    if record is None:
        return None
    is_argument = parameter.param_type_name == "argument"
    meaning = _RANGE.sub(_range_in_words, record[1].removesuffix("  [required]"))
    return _in_usage(parameter) if is_argument else _plain_types(record[0]), meaning


def _range_in_words(found: re.Match[str]) -> str:
    """
    >>> _RANGE.sub(_range_in_words, "Lines.  [default: 50; 1<=x<=100]"), _RANGE.sub(_range_in_words, "Size.  [x>=1]")
    ('Lines.  [default: 50; 1 to 100]', 'Size. [at least 1]')
    """
    bound = f"at least {found['least']}" if found["least"] else f"{found['low']} to {found['high']}"
    return f"{'; ' if found['before'].startswith(';') else ' ['}{bound}"


def _plain_types(spelling: str) -> str:
    """
    >>> _plain_types("-c, --ctx-size <int>"), _plain_types("--kv-type <f16|q8>")
    ('-c, --ctx-size N', '--kv-type f16|q8')
    """
    for shown, plain in _TYPES.items():
        spelling = spelling.replace(shown, plain)
    return _CHOICES.sub(r"\1", spelling)


def _panel(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    return getattr(parameter, "rich_help_panel", None) or "Options"


def _rank(panel: str) -> int:
    return _LAST_PANELS.index(panel) + 1 if panel in _LAST_PANELS else 0


_CONFIGS = {
    "SamplingParams": "core/params.py",
    "EngineConfig": "engine/config.py",
    "ServerConfig": "server/config.py",
    "RegistryConfig": "runtime/config.py",
    "ReplicaConfig": "runtime/replica_config.py",
    "RuntimeConfig": "runtime/external/config.py",
}
_DEFAULT = re.compile(r"(?s)(?P<text>.*?)(?:\s*Default: (?P<default>.+?)\.?)?")
_SETTING = re.compile(r"`([a-z]+(?:_[a-z]+)+)`")


@cache
def meanings() -> Mapping[str, str]:
    """Key of a setting -> its text in `--help`, made from the doc literal of the setting's field.

    >>> meanings()["threads"]
    'Number of CPU threads. [default: one per physical core that this process may use]'
    """
    rooms = Path(__file__).resolve().parent.parent
    return {
        key: text
        for name, file in _CONFIGS.items()
        for key, text in _field_docs(name, (rooms / file).read_text(encoding="utf-8"))
    }


def _field_docs(config: str, source: str) -> Iterator[tuple[str, str]]:
    (body,) = (node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == config)
    for field, doc in pairwise(body):
        match field, doc:
            case (
                ast.AnnAssign(target=ast.Name(key), value=ast.Constant(default)),
                ast.Expr(value=ast.Constant(str(text))),
            ):
                yield key, _help(" ".join(text.split()), default)
            case ast.AnnAssign(target=ast.Name(key)), ast.Expr(value=ast.Constant(str(text))):
                yield key, _help(" ".join(text.split()), None)
            case _:
                pass


def _help(text: str, default: object) -> str:
    found = _DEFAULT.fullmatch(_SETTING.sub(lambda name: f"--{name[1].replace('_', '-')}", text))
    assert found is not None, "every text matches"
    shown = found["default"] or _shown(default)
    return f"{found['text']} [default: {shown}]" if shown else found["text"]


def _shown(default: object) -> str:
    """
    >>> _shown(True), _shown(5.0), _shown(None)
    ('yes', '5', '')
    """
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, float):
        return f"{default:g}"
    return "" if default is None else str(default)
