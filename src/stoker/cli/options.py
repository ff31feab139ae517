"""Options that several commands share, each declared once. The help of a setting is its doc literal, see `meanings`.

Options have no defaults here: a setting without its option comes from the environment, the file or its own default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from copy import copy
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeAlias, cast, get_args

import typer

from stoker.cli.announce import announce
from stoker.cli.later import block_place, catalog, discovery, library, msgspec, params, settings
from stoker.cli.report import say, set_up_logging
from stoker.errors import ConfigError

if TYPE_CHECKING:
    from stoker.engine.config import EngineConfig


def model_names(incomplete: str) -> list[str]:
    """Completions of a model name: names on this disk first, then well-known names that can be downloaded."""
    here = [name for found in discovery.discover_models(None) for name in found.names]
    known = [name for model in library.library().values() for name in model.names]
    return list(dict.fromkeys(name for name in (*here, *catalog.CATALOG, *known) if name.startswith(incomplete)))


OptionGroup: TypeAlias = Mapping[str, Any]
"""Parameter name -> annotated type; the name is also the key of the setting."""

P = ParamSpec("P")

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        autocompletion=model_names,
        help="Name from `stoker models --all`, path of a .gguf file or a model folder, or ORG/REPO[:FILE] on the hub.",
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL]...",
        show_default=False,
        autocompletion=model_names,
        help="Names from `stoker models --all`, paths of .gguf files, or ORG/REPO[:FILE] on the hub.",
    ),
]
System = Annotated[
    str | None,
    typer.Option("--system", "-s", metavar="TEXT", show_default=False, rich_help_panel="Model", help="System prompt."),
]
Backend = Literal["auto", "native", "llama", "onnx"]
KVType = Literal["f16", "f32", "q8", "q4", "q16", "i16"]
PoolingName = Literal["mean", "cls", "last"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
FlashAttention = Literal["auto", "on", "off"]
SplitMode = Literal["none", "layer", "row"]
Runtime = Literal["engine", "llama-server", "vllm"]
LogLevel = Literal["debug", "info", "warning", "error"]


class _Opt(NamedTuple):
    """An option that needs more than a type: names, a metavar or a parser."""

    kind: Any
    names: tuple[str, ...] = ()
    metavar: str | None = None
    parser: Callable[[str], object] | None = None


def _layers(text: str) -> int | str:
    """Parses the value of `--gpu-layers`: a number, or `auto`."""
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a whole number nor auto") from None


def _panel(panel: str, **options: Any) -> OptionGroup:
    """Options of one section (panel) of the help, as setting = type, or `_Opt`. The setting gives the help text."""
    given = {key: option if isinstance(option, _Opt) else _Opt(option) for key, option in options.items()}
    return {
        key: _option(opt.kind | None, panel, None, *opt.names, metavar=opt.metavar, parser=opt.parser)
        for key, opt in given.items()
    }


def _option(kind: Any, panel: str, help_text: str | None, *names: str, **more: Any) -> Any:
    return Annotated[kind, typer.Option(*names, help=help_text, rich_help_panel=panel, show_default=False, **more)]


def _bench(kind: Any, help_text: str, **more: Any) -> Any:
    return _option(kind | None, "Measurement", help_text, **more)


_GPU_AND_ONNX = _panel(
    "GPU and ONNX",
    gpu_layers=_Opt(str, metavar="N|auto", parser=_layers),
    n_cpu_moe=int,
    override_tensor=_Opt(str, metavar="PATTERN=BUFFER"),
    split_mode=SplitMode,
    main_gpu=int,
    tensor_split=_Opt(str, metavar="N,N"),
    flash_attn=FlashAttention,
    provider=_Opt(str, metavar="NAME"),
    device_id=_Opt(str, metavar="N,N"),
    onnx_variant=_Opt(str, metavar="NAME"),
)
_ADVANCED = _panel(
    "Advanced",
    image_min_tokens=int,
    image_max_tokens=int,
    max_draft=int,
    draft_model=_Opt(str, metavar="MODEL"),
    pooling=PoolingName,
    chat_template_file=_Opt(str, metavar="FILE"),
    tool_format=_Opt(str, metavar="NAME"),
    script=_Opt(str, metavar="FILE"),
    lora=_Opt(list[str], metavar="NAME=PATH[:SCALE]"),
    control_vector=_Opt(list[str], metavar="PATH[:SCALE]"),
    control_vector_layers=_Opt(str, metavar="FROM-TO"),
)
_CACHE = _panel(
    "Cache",
    kv_tokens=int,
    kv_type=KVType,
    cache_type_k=CacheType,
    cache_type_v=CacheType,
    cache_ram=int,
    kv_cache_dir=_Opt(str, ("--cache-dir",), "FOLDER"),
    cache_disk=int,
)
ENGINE: OptionGroup = {
    **_panel(
        "Model",
        backend=Backend,
        ctx_size=_Opt(int, ("--ctx-size", "-c")),
        mmproj=_Opt(str, metavar="FILE"),
        parallel=int,
        threads=_Opt(int, ("--threads", "-t")),
    ),
    **_CACHE,
    **_GPU_AND_ONNX,
    **_ADVANCED,
}
SAMPLING: OptionGroup = _panel(
    "Sampling",
    temperature=float,
    top_p=float,
    top_k=int,
    min_p=float,
    seed=int,
    max_tokens=_Opt(int, ("--max-tokens", "-n")),
    stop=_Opt(list[str], metavar="TEXT"),
)
SERVER: OptionGroup = _panel(
    "Server",
    host=_Opt(str, metavar="ADDRESS"),
    port=int,
    name=_Opt(str, metavar="NAME"),
    replicas=_Opt(str, metavar="N|MIN-MAX"),
    runtime=Runtime,
    llama_server_path=_Opt(str, metavar="PATH"),
    llama_server_args=_Opt(str, metavar="ARGS"),
    vllm_path=_Opt(str, metavar="PATH"),
    vllm_args=_Opt(str, metavar="ARGS"),
    max_queue=int,
    max_queue_tokens=int,
    strict_models=bool,
    strict_fields=bool,
    volatile_headers=_Opt(list[str], ("--volatile-header",), "REGEX"),
    slot_save_path=_Opt(str, metavar="PATH"),
    files_dir=_Opt(str, metavar="FOLDER"),
    files_mib=int,
    session_ttl_s=float,
    request_timeout_s=float,
    max_connections=int,
    unix_socket=_Opt(str, metavar="PATH"),
    root_path=_Opt(str, metavar="PATH"),
    ui=_Opt(bool, ("--ui/--no-ui",)),
    ui_store=_Opt(str, metavar="FOLDER"),
    log_format=Literal["text", "json"],
    otlp_endpoint=_Opt(str, metavar="URL"),
)
MODELS: OptionGroup = _panel(
    "Several models",
    models_dir=_Opt(str, metavar="FOLDER"),
    alias=_Opt(list[str], metavar="NAME=MODEL"),
    pin=_Opt(list[str], metavar="MODEL"),
    keep_alive=_Opt(list[str], metavar="[MODEL=]TIME"),
    models_max=int,
    memory_budget=int,
    kv_budget=int,
    autoload=_Opt(bool, ("--autoload/--no-autoload",)),
    swap_after_s=float,
    swap_after_requests=int,
)
SECURITY: OptionGroup = _panel(
    "Security",
    api_key=_Opt(str, metavar="KEY"),
    api_key_file=_Opt(str, metavar="FILE"),
    admin_key=_Opt(str, metavar="KEY"),
    allow_unauthenticated=bool,
    tls_certificate=_Opt(str, metavar="FILE"),
    tls_key=_Opt(str, metavar="FILE"),
    cors_origins=_Opt(str, metavar="ORIGIN"),
    cors_credentials=bool,
    allowed_hosts=_Opt(str, metavar="NAME"),
    media_urls=Literal["off", "public"],
    allowed_media_domains=_Opt(list[str], ("--allowed-media-domain",), "DOMAIN"),
    media_path=_Opt(str, metavar="FOLDER"),
)
_SCENARIO_HELP = (
    "Scenario: distinct, shared, agent, mixed, restart, cold, offline, or all; may be repeated. [default: distinct]"
)
BENCH: OptionGroup = {
    "scenario": _bench(list[str], _SCENARIO_HELP, metavar="NAME"),
    "concurrency": _bench(
        str, "Number of concurrent requests; several, such as 1,2,4, are measured in turn.", metavar="N,N"
    ),
    "prompt_tokens": _bench(int, "Length of each prompt, or of its long part, in tokens."),
    "output_tokens": _bench(int, "Length of each answer, in tokens; end-of-generation tokens are ignored."),
    "requests": _bench(int, "Number of requests for each level of concurrency; agent: of conversations."),
    "turns": _bench(int, "agent: number of requests in each conversation. [default: 6]"),
    "shared_tokens": _bench(
        int, "agent: length of the system prompt that all conversations share, in tokens. [default: 1024]"
    ),
    "repetitions": _bench(int, "Number of repetitions; the median is reported. [default: 3]"),
    "ttft_limit": _bench(float, "Goodput: maximum time to first token, in seconds. [default: 2]"),
    "itl_limit": _bench(float, "Goodput: maximum mean inter-token latency, in seconds. [default: 0.2]"),
    "seed": _bench(int, "Random seed of the prompts. [default: 0; a new one for servers that were already running]"),
    "endpoint": _bench(Literal["completions", "chat"], "API to measure. [default: completions]"),
    "stall_after": _bench(float, "Time without a token after which a request fails, in seconds. [default: 120]"),
    "json": _bench(Path, "File for all results, for `stoker bench compare`.", metavar="FILE"),
    "plot": _bench(Path, "File for a plot of the results (extra `bench`).", metavar="FILE"),
}
"""Options of a measurement. They are not settings, so the configuration is loaded without them."""
FILE: OptionGroup = {
    "config": _option(
        Path | None,
        "General",
        "TOML file with settings. [default: $STOKER_CONFIG, else stoker.toml in your configuration folder]",
        metavar="FILE",
    ),
}
"""The option that names the configuration file, for every command that has settings."""
_GENERAL: OptionGroup = {
    "log_level": _option(
        LogLevel | None, "General", "Minimum level of log lines on stderr. [default: $STOKER_LOG_LEVEL, else warning]"
    ),
    "verbose": _option(bool, "General", "Same as --log-level info, and tracebacks for errors.", "--verbose", "-v"),
}


@dataclass(frozen=True, slots=True)
class Flags:
    """The shared options of one command line; `values` contains only options that were given."""

    config_file: Path | None
    values: Mapping[str, Any]

    def load(self, *, without: OptionGroup | None = None) -> settings.Config:
        """Loads the configuration, in which these flags override the environment and the file.

        Args:
            without: options to leave out. Sampling options of a request then override what the model recommends.
        """
        values = {key: value for key, value in self.values.items() if key not in (without or {})}
        return settings.load_config(values, file=self.config_file)

    def engine_config(self, model: str) -> EngineConfig:
        """Configuration of an engine for one user: `parallel` is 1 unless set. See `sampling` for sampling flags."""
        announce(model)
        config = self.load(without=SAMPLING)
        say_misspelled(config)
        check_cache_dir(config.engine.kv_cache_dir)
        parallel = config.engine.parallel if config.is_given("parallel") else 1
        return msgspec.structs.replace(config.engine, model=model, parallel=parallel)

    def sampling(self) -> params.SamplingParams:
        """The sampling parameters of one request; those without a flag are None.

        Raises:
            InvalidInput: a value is out of its range.
        """
        return params.SamplingParams(**{key: self.values[key] for key in SAMPLING if key in self.values})


def say_ignored(variables: Mapping[str, str]) -> None:
    """Prints a note for each environment variable that is not a setting: see `Config.ignored_variables`."""
    for variable, meant in variables.items():
        hint = f"; did you mean {meant}?" if meant else ""
        say(f"note: the environment variable {variable} is set, but is not a setting of stoker{hint}")


def say_misspelled(config: settings.Config) -> None:
    """Prints a note for each environment variable that is surely a misspelled setting.

    Others may belong to something else: Kubernetes, for example, sets variables with the names of its services.
    """
    say_ignored({variable: meant for variable, meant in config.ignored_variables.items() if meant})


def check_cache_dir(folder: str) -> None:
    """Checks that the persistent prefix cache can be written, before anything is computed. Empty `folder` = no cache.

    Raises:
        ConfigError: the folder cannot be created or written, or the object store does not answer.
    """
    if not folder:
        return
    place = block_place.open_place(folder)
    try:
        place.prepare()
    except OSError as error:
        message = f"--cache-dir: {folder} cannot be used: {error.strerror or error}"
        raise ConfigError(message, key="kv_cache_dir") from error
    finally:
        place.close()


def shared_options(
    *groups: OptionGroup, is_configured: bool = True, hidden: Collection[str] = ()
) -> Callable[[Callable[Concatenate[Flags, P], None]], Callable[P, None]]:
    """A decorator that adds the options of these groups, and the general ones, to a command.

    The command receives them as `Flags`, its first parameter.

    Args:
        is_configured: whether some of them are settings, so that the command also takes `--config`.
        hidden: options that the command refuses with a reason; its help leaves them out.
    """
    every = (*groups, FILE, _GENERAL) if groups and is_configured else (*groups, _GENERAL)
    shared = {name: _hidden(hint) if name in hidden else hint for group in every for name, hint in group.items()}

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


def _hidden(hint: Any) -> Any:
    kind, info = get_args(hint)
    info = copy(info)
    info.hidden = True
    return Annotated[kind, info]


def _parameter(name: str, hint: Any) -> inspect.Parameter:
    default = False if name == "verbose" else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _flags(values: dict[str, Any]) -> Flags:
    is_verbose = values.pop("verbose")
    set_up_logging(values.pop("log_level") or ("info" if is_verbose else None))
    file = values.pop("config", None)
    return Flags(file, {name: value for name, value in values.items() if value not in (None, [])})
