"""The options that several commands share, each declared once; it gives them no default and reads no setting."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Literal, ParamSpec, TypeAlias, cast

import typer

from stoker.cli.report import set_up_logging

if TYPE_CHECKING:
    from stoker.config import Config
    from stoker.core.params import SamplingParams
    from stoker.engine.config import EngineConfig

OptionGroup: TypeAlias = Mapping[str, Any]
"""Parameter name -> annotated type; the name is also the key of the setting."""

P = ParamSpec("P")

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        help="A name from `stoker models`, a path to a .gguf file or an ONNX folder, or ORG/REPO[:FILE] on the hub.",
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL]...",
        show_default=False,
        help="Names from `stoker models`, paths to .gguf files, or ORG/REPO[:FILE] on the hub.",
    ),
]
System = Annotated[
    str | None,
    typer.Option("--system", metavar="TEXT", show_default=False, help="What the model should know before it answers."),
]
Backend = Literal["auto", "native", "llama", "onnx"]
KVType = Literal["f16", "f32", "q8", "q16", "i16"]
PoolingName = Literal["mean", "cls", "last"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
FlashAttention = Literal["auto", "on", "off"]
SplitMode = Literal["none", "layer", "row"]
Runtime = Literal["engine", "llama-server"]
LogLevel = Literal["debug", "info", "warning", "error"]


def _option(kind: Any, panel: str, help_text: str, *names: str, **more: Any) -> Any:
    return Annotated[kind, typer.Option(*names, help=help_text, rich_help_panel=panel, show_default=False, **more)]


def _model(kind: Any, help_text: str) -> Any:
    return _option(kind | None, "Model", help_text)


def _sampling(kind: Any, help_text: str, **more: Any) -> Any:
    return _option(kind | None, "Sampling", help_text, **more)


def _bench(kind: Any, help_text: str, **more: Any) -> Any:
    return _option(kind | None, "Measurement", help_text, **more)


def _server(kind: Any, help_text: str, **more: Any) -> Any:
    return _option(kind | None, "Server", help_text, **more)


def _several(kind: Any, help_text: str, *names: str, **more: Any) -> Any:
    return _option(kind | None, "Several models", help_text, *names, **more)


def _libllama(kind: Any, help_text: str, **more: Any) -> Any:
    return _option(kind | None, "Adapters and libllama", help_text, **more)


def _security(kind: Any, help_text: str, **more: Any) -> Any:
    return _option(kind | None, "Security", help_text, **more)


_ADAPTERS: OptionGroup = {
    "lora": _libllama(
        list[str],
        "LoRA adapter (GGUF) for requests that ask for NAME; PATH alone, or a scale behind it, applies it to all that "
        "ask for none. May be repeated.",
        metavar="NAME=PATH[:SCALE]",
    ),
    "control_vector": _libllama(
        list[str], "Control vector (GGUF) that is added to everything; may be repeated.", metavar="PATH[:SCALE]"
    ),
    "control_vector_layers": _libllama(str, "Behind which layers. [default: all]", metavar="FROM-TO"),
    "cache_type_k": _libllama(CacheType, "How keys are kept. [default: as --kv-type says]"),
    "cache_type_v": _libllama(CacheType, "How values are kept. [default: as --kv-type says]"),
    "flash_attn": _libllama(FlashAttention, "Flash attention. [default: auto]"),
    "gpu_layers": _libllama(int, "Layers on GPUs, if there are any; 0 = none. [default: all]"),
    "split_mode": _libllama(SplitMode, "How several GPUs share the model. [default: layer]"),
    "main_gpu": _libllama(int, "The GPU for what is not split. [default: 0]"),
    "tensor_split": _libllama(str, "Parts of the GPUs, such as 3,1. [default: by free memory]", metavar="N,N"),
}
"""What only libllama does: with --backend auto, each of these takes it."""
ENGINE: OptionGroup = {
    "backend": _model(
        Backend, "Who computes; auto = native where it can, else llama; onnx for ONNX folders. [default: auto]"
    ),
    "ctx_size": _model(int, "Longest single request, in tokens. [default: what the model knows, at most 8192]"),
    "kv_tokens": _model(int, "Tokens in the cache that all requests share. [default: from the memory plan]"),
    "parallel": _model(int, "Most requests computed at the same time. [default: 8; run and chat: 1]"),
    "threads": _model(int, "CPU threads. [default: one per usable core]"),
    "kv_type": _model(
        KVType, "How keys and values are kept; q8 is smallest. [default: i16 or q16 where it is faster, else f16]"
    ),
    "max_draft": _model(
        int, "Most tokens that are guessed ahead for a stream, where that is faster; 0 = none. [default: 15]"
    ),
    **_ADAPTERS,
    "provider": _model(str, "ONNX: who computes, such as cpu or cuda. [default: the fastest that is there]"),
    "device_id": _model(int, "ONNX: which of several devices of the provider. [default: 0]"),
    "onnx_variant": _model(str, "ONNX: which graph of a folder, such as q4f16. [default: what suits a CPU]"),
    "pooling": _model(PoolingName, "How tokens become one embedding. [default: what the model says, else mean]"),
    "cache_ram": _model(
        int, "MiB of memory for conversations that have left the cache. [default: a quarter of what is free, ≤ 8192]"
    ),
    "kv_cache_dir": _option(
        str | None,
        "Model",
        "Folder in which conversations outlive a restart. [default: $STOKER_KV_CACHE_DIR, else none]",
        "--cache-dir",
    ),
    "cache_disk": _model(int, "MiB that this folder may hold. [default: half of what is free, at most 10240]"),
}
SAMPLING: OptionGroup = {
    "temperature": _sampling(float, "0 = always the most likely token."),
    "top_p": _sampling(float, "Choose among the most likely tokens that together reach this probability."),
    "top_k": _sampling(int, "Choose among so many most likely tokens; 0 = all."),
    "min_p": _sampling(float, "Drop tokens less likely than this times the most likely one; 0 = off."),
    "seed": _sampling(int, "The same seed gives the same answer. [default: random]"),
    "max_tokens": _sampling(int, "Longest answer, in tokens. [default: until the model stops]"),
    "stop": _sampling(list[str], "End the answer before this text; may be repeated.", metavar="TEXT"),
}
SERVER: OptionGroup = {
    "host": _server(str, "Address to listen on. [default: 127.0.0.1]"),
    "port": _server(int, "Port; 0 = a free one. [default: 8080]"),
    "name": _server(str, "Serve the model under this name. [default: MODEL]"),
    "replicas": _server(
        str, "Engines of the model that share its weights and the machine; 1-4 = as many as are needed. [default: 1]"
    ),
    "runtime": _server(
        Runtime, "Who runs the model: engine = Stoker itself; llama-server = llama.cpp's program. [default: engine]"
    ),
    "llama_server_path": _server(
        str, "Where llama-server is. [default: in PATH, else in the wheel of that name]", metavar="PATH"
    ),
    "llama_server_args": _server(str, "Further arguments for llama-server, as in a shell.", metavar="ARGS"),
    "max_queue": _server(int, "Most requests that wait; one more is refused with 429. [default: 256]"),
    "max_queue_tokens": _server(int, "Most prompt tokens that wait, refused alike. [default: 262144]"),
    "strict_models": _server(bool, "Refuse requests that name another model. [default: no]"),
    "volatile_headers": _option(
        list[str] | None,
        "Server",
        "Drop lines at the head of a system prompt that match this; may be repeated. For agents that put a line there "
        "which is never the same twice: it defeats the prefix cache.",
        "--volatile-header",
        metavar="REGEX",
    ),
    "slot_save_path": _server(
        str, "Folder in which clients may save and restore slots by name. [default: none]", metavar="PATH"
    ),
    "request_timeout_s": _server(float, "Longest time for one answer, in seconds. [default: no limit]"),
    "max_connections": _server(int, "Most open connections; one more is refused with 429. [default: 1024]"),
    "unix_socket": _server(str, "Listen on this local socket instead of an address.", metavar="PATH"),
    "root_path": _server(str, "Serve everything below this path too, such as /llm.", metavar="PATH"),
    "log_format": _server(Literal["text", "json"], "Of the access log, which --log-level info shows. [default: text]"),
    "otlp_endpoint": _server(str, "Send a span per request to this collector (extra `otel`).", metavar="URL"),
}
MODELS: OptionGroup = {
    "models_dir": _several(str, "Folder of .gguf files to serve, and with them all that was pulled.", metavar="FOLDER"),
    "alias": _several(list[str], "A further name for a model; may be repeated.", metavar="NAME=MODEL"),
    "pin": _several(list[str], "Keep this model once it is loaded; may be repeated.", metavar="MODEL"),
    "keep_alive": _several(
        list[str],
        "Unload a model that was not asked for so long, such as 10m; -1 = never. "
        "[default: never; models that are not named here: 5m]",
        metavar="[MODEL=]TIME",
    ),
    "models_max": _several(int, "Most models that are loaded at the same time. [default: as many as fit]"),
    "memory_budget": _several(int, "MiB that all models may take. [default: what is free at the start]"),
    "kv_budget": _several(int, "MiB for the KV of all models, in equal parts. [default: each as it needs]"),
    "autoload": _several(bool, "Load a model when it is asked for. [default: yes]", "--autoload/--no-autoload"),
    "swap_after_s": _several(
        float, "Seconds that a model in use goes on taking requests while another waits for its memory. [default: 5]"
    ),
    "swap_after_requests": _several(int, "And at most so many requests. [default: 64]"),
}
SECURITY: OptionGroup = {
    "api_key": _security(
        str, "What clients must send; several with commas, NAME:KEY names one. Better: $STOKER_API_KEY.", metavar="KEY"
    ),
    "api_key_file": _security(str, "File with one key a line, written in the same way.", metavar="FILE"),
    "admin_key": _security(
        str, "Only this key may load, unload, pull, copy, delete and erase. Better: $STOKER_ADMIN_KEY.", metavar="KEY"
    ),
    "allow_unauthenticated": _security(bool, "Listen beyond this machine without any key. [default: no]"),
    "tls_certificate": _security(str, "PEM file with the certificate and its chain: speak HTTPS.", metavar="FILE"),
    "tls_key": _security(str, "PEM file with the certificate's private key.", metavar="FILE"),
    "cors_origins": _security(str, "Web pages that may ask, with commas between them; * = all.", metavar="ORIGIN"),
    "cors_credentials": _security(bool, "Those pages may send cookies; not with *. [default: no]"),
    "allowed_hosts": _security(
        str, "Further names for a server on this machine, with commas between them; * = all.", metavar="NAME"
    ),
}
_SCENARIO_HELP = (
    "What to measure: distinct, shared, agent, mixed, restart, cold, offline, or all; may be repeated. "
    "[default: distinct]"
)
BENCH: OptionGroup = {
    "scenario": _bench(list[str], _SCENARIO_HELP, metavar="NAME"),
    "concurrency": _bench(str, "Requests at a time; several, as in 1,2,4, one after the other.", metavar="N,N"),
    "prompt_tokens": _bench(int, "Length of a prompt, or of its long part."),
    "output_tokens": _bench(int, "Length of every answer; the end of generation is ignored."),
    "requests": _bench(int, "Requests for each level of concurrency; of agent: conversations."),
    "turns": _bench(int, "agent: requests of each conversation. [default: 6]"),
    "shared_tokens": _bench(int, "agent: instructions that all conversations begin with. [default: 1024]"),
    "repetitions": _bench(int, "How often everything is done; the median counts. [default: 3]"),
    "ttft_limit": _bench(float, "Goodput: longest time to the first token, in seconds. [default: 2]"),
    "itl_limit": _bench(float, "Goodput: longest mean time between two tokens, in seconds. [default: 0.2]"),
    "seed": _bench(int, "Other prompts. [default: 0; a new one for servers that were running before]"),
    "endpoint": _bench(Literal["completions", "chat"], "Which API to use. [default: completions]"),
    "stall_after": _bench(float, "Give a request up that is silent for so many seconds. [default: 120]"),
    "json": _bench(Path, "Write all figures to this file, for `stoker bench compare`.", metavar="FILE"),
    "plot": _bench(Path, "Draw curves into this file (extra `bench`).", metavar="FILE"),
}
"""What is measured: no settings, so these are left out when the configuration is loaded."""
_FILE: OptionGroup = {
    "config": _option(
        Path | None,
        "General",
        "TOML file with settings. [default: $STOKER_CONFIG, else stoker.toml in your configuration folder]",
        metavar="FILE",
    ),
}
"""For every command that has settings."""
_GENERAL: OptionGroup = {
    "log_level": _option(LogLevel | None, "General", "What goes to stderr. [default: $STOKER_LOG_LEVEL, else warning]"),
    "verbose": _option(bool, "General", "As --log-level info; errors come with a traceback.", "--verbose", "-v"),
}


@dataclass(frozen=True, slots=True)
class Flags:
    """The shared options that were given."""

    config_file: Path | None
    values: Mapping[str, Any]

    def load(self, *, without: OptionGroup | None = None) -> Config:
        """The configuration under these flags.

        Args:
            without: options that are part of the request instead, and so win over what the model recommends.
        """
        from stoker.config import load_config

        values = {key: value for key, value in self.values.items() if key not in (without or {})}
        return load_config(values, file=self.config_file)

    def engine_config(self, model: str) -> EngineConfig:
        """The engine of one user who asks one thing at a time; the sampling flags are left to `sampling`."""
        import msgspec

        config = self.load(without=SAMPLING)
        parallel = config.engine.parallel if config.is_given("parallel") else 1
        return msgspec.structs.replace(config.engine, model=model, parallel=parallel)

    def sampling(self) -> SamplingParams:
        """What the flags say about one request.

        Raises:
            InvalidInput: a value is out of its range.
        """
        from stoker.core.params import SamplingParams

        return SamplingParams(**{key: self.values[key] for key in SAMPLING if key in self.values})


def shared_options(
    *groups: OptionGroup, is_configured: bool = True
) -> Callable[[Callable[Concatenate[Flags, P], None]], Callable[P, None]]:
    """Adds the options of these groups, and the general ones, to a command whose first parameter takes the `Flags`.

    Args:
        is_configured: some of them are settings, so the command takes a config file.
    """
    every = (*groups, _FILE, _GENERAL) if groups and is_configured else (*groups, _GENERAL)
    shared = {name: hint for group in every for name, hint in group.items()}

    def decorate(command: Callable[Concatenate[Flags, P], None]) -> Callable[P, None]:
        @wraps(command)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            command(_flags({name: kwargs.pop(name) for name in shared}), *args, **kwargs)

        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = [*own, *(_parameter(name, hint) for name, hint in shared.items())]
        cast(Any, run).__signature__ = inspect.Signature(parameters)
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _parameter(name: str, hint: Any) -> inspect.Parameter:
    default = False if name == "verbose" else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _flags(values: dict[str, Any]) -> Flags:
    is_verbose = values.pop("verbose")
    set_up_logging(values.pop("log_level") or ("info" if is_verbose else None))
    file = values.pop("config", None)
    return Flags(file, {name: value for name, value in values.items() if value not in (None, [])})
