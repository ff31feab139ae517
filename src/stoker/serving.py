"""From settings to a server: the models, their names, and the processes that each is given.

Nothing is started here: the registry decides whether and when a runtime is made.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.backends.cores import usable_cores
from stoker.config import Config, engine_with
from stoker.engine import spare
from stoker.engine.client import EngineClient
from stoker.engine.config import EngineConfig, SupervisionConfig
from stoker.engine.supervisor import same_sizes
from stoker.errors import ConfigError
from stoker.lazy import lazy_module
from stoker.loading.encoders import create_encoder
from stoker.loading.locating import (
    check_unicode,
    local_folder,
    local_model,
    prepared_path,
    with_local_draft,
    with_preset,
)
from stoker.loading.transcribers import create_transcriber, measure_transcriber, transcribes
from stoker.models.discovery import discover_models
from stoker.models.memory import available_memory
from stoker.runtime.config import ModelConfig
from stoker.runtime.external.config import RuntimeConfig
from stoker.runtime.keep_alive import parse_keep_alive
from stoker.runtime.local_fleet import LocalFleet
from stoker.runtime.named_settings import NamedSettings, without_shared_names
from stoker.runtime.registry import ModelSpec, Registry
from stoker.runtime.replicas import ReplicatedRuntime
from stoker.runtime.served import names_of_source, served_names
from stoker.runtime.shares import share_of, within_kv_share
from stoker.text.volatile import VolatileHeaders

if TYPE_CHECKING:
    from stoker.engine import tiers
    from stoker.engine.cards import ModelCard
    from stoker.loading import choosing
    from stoker.models.memory_plan import MemoryNeeds, MemoryPlan
    from stoker.models.progress import Progress
    from stoker.runtime import whisper
    from stoker.runtime.base import Runtime
    from stoker.runtime.external import runtime as external
    from stoker.runtime.llama_server import model_file
    from stoker.runtime.llama_server import served as llama_server
    from stoker.runtime.replica_config import ReplicaConfig
    from stoker.runtime.vllm import served as vllm
    from stoker.server.transport import run
else:
    # What measures models imports numpy, which a server does without as long as no model is measured.
    choosing = lazy_module("stoker.loading.choosing")
    model_file = lazy_module("stoker.runtime.llama_server.model_file")
    tiers = lazy_module("stoker.engine.tiers")
    run = lazy_module("stoker.server.transport.run")  # a spare process is told its model before
    llama_server = lazy_module("stoker.runtime.llama_server.served")  # if it computes
    vllm = lazy_module("stoker.runtime.vllm.served")
    external = lazy_module("stoker.runtime.external.runtime")
    whisper = lazy_module("stoker.runtime.whisper")

logger = logging.getLogger(__name__)

_FOUND_KEEP_ALIVE_S = 300.0
"""Keep-alive of models that the settings do not name; Ollama's default."""
_USUAL_MODELS = 4
"""Default number of models that are loaded at the same time; llama-server's number."""
_RAM_SHARE = 4
_MAX_RAM_MIB = 8192
_MIB = 2**20


def create_registry(config: Config, models: Sequence[str], *, progress: Progress | None = None) -> Registry:
    """The models of the command line and of the configuration file, and where more are to be found.

    Nothing is loaded yet; what is named and not on this disk is downloaded. If nothing is named at all, every pulled
    model is served, and loaded when a request asks for it.

    Args:
        config: all settings.
        models: as the command line names them; they come first.
        progress: told about downloads.

    Raises:
        ConfigError: two models have one name, or a setting is about none of them.
        ModelError: there is no such model, or no way to get it.
    """
    named = named_models(config, models)
    specs, named_settings, makers = _specs(config, named, progress, repeats=True)
    folder, is_open = config.registry.models_dir, _is_open(config, len(named))
    return Registry(
        specs,
        config.registry,
        strict=config.server.strict_models,
        discover=(lambda: [named_settings.applied(spec) for spec in makers.found(folder)]) if is_open else None,
    )


def named_models(config: Config, models: Sequence[str]) -> list[tuple[str, ModelConfig]]:
    """The models that are named: those of the command line, and those of the configuration file.

    Args:
        config: all settings.
        models: as the command line names them; they come first.
    """
    return [*((model, ModelConfig()) for model in models), *(config.registry.models or {}).items()]


def names_of(config: Config, name: str, model: ModelConfig) -> tuple[str, ...]:
    """Under which names a model is served, aliases of the settings included. It looks for nothing on this disk."""
    never = ModelSpec(names=_own_names(config, name, model), make=_never)
    return NamedSettings.of(config.registry).applied(never).names


def create_replica(config: Config, models: Sequence[str]) -> ModelSpec:
    """The one model that is named, as a replica of it: a request that had not begun ends with its engine.

    Args:
        config: all settings.
        models: as the command line names them.

    Raises:
        ConfigError: a setting cannot be used.
        ModelError: there is no such model, or no way to get it.
    """
    specs, _, _ = _specs(config, named_models(config, models), None, repeats=False)
    (spec,) = specs
    return spec


def _specs(
    config: Config, named: Sequence[tuple[str, ModelConfig]], progress: Progress | None, *, repeats: bool
) -> tuple[list[ModelSpec], NamedSettings, _Makers]:
    """The specs of the named models, what the settings say about models, and what makes further specs."""
    is_open = _is_open(config, len(named))
    if config.engine.name and len(named) != 1:
        raise ConfigError("--name is for one model; use --alias NAME=MODEL for several", key="name")
    if (config.engine.lora or config.engine.control_vector) and (len(named) != 1 or is_open):
        option = "--lora" if config.engine.lora else "--control-vector"
        message = f"{option} is for one model; give several theirs in the file, under [registry.models.NAME.engine]"
        raise ConfigError(message, key=option[2:].replace("-", "_"))
    if config.registry.models_dir:
        _check_folder(Path(config.registry.models_dir).expanduser())
    named_settings = NamedSettings.of(config.registry)
    makers = _Makers(config, _usual_cache_mib(config, len(named)), _kv_share_mib(config, len(named)), repeats=repeats)
    specs = list(
        without_shared_names([named_settings.applied(makers.named(name, model, progress)) for name, model in named])
    )
    named_settings.check(specs, is_open=is_open)
    return specs, named_settings, makers


def _never(_plan: MemoryPlan | None) -> Runtime:
    raise AssertionError("only its names are asked for")


def _own_names(config: Config, name: str, model: ModelConfig) -> tuple[str, ...]:
    source = model.source or name
    given = config.engine.name or (name if model.source else "")
    return served_names(given, source, *model.alias) if given else names_of_source(source, *model.alias)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(f"--models-dir: {folder} is not a directory", key="models_dir")
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise ConfigError(f"--models-dir: {folder} cannot be read: {error.strerror}", key="models_dir") from error


def run_server(
    registry: Registry, config: Config, on_ready: Callable[[str], None], on_stop: Callable[[int], None] | None = None
) -> None:
    """Serves over HTTP until SIGINT or SIGTERM.

    Args:
        registry: the models.
        config: all settings.
        on_ready: told the URL.
        on_stop: told how many requests still run when it begins to stop.

    Raises:
        StokerError: a model cannot be loaded, or the address cannot be had.
    """
    run.serve(registry, config.server, on_ready, on_stop, batch_concurrency=config.engine.parallel)


def create_runtime(
    engine: EngineConfig,
    volatile: VolatileHeaders,
    supervision: SupervisionConfig,
    replicas: ReplicaConfig | None = None,
    runtime_config: RuntimeConfig | None = None,
    *,
    repeats: bool = True,
) -> Runtime:
    """One model, in one child process or in several replicas of it. Nothing is started yet.

    Args:
        engine: of the model as a whole, see `share_of`; with the file on this disk.
        volatile: lines to drop from the head of system prompts.
        supervision: of each child.
        replicas: how many; not given: one.
        runtime_config: the runtime that computes; not given: an engine of ours.
        repeats: requests that had not begun when their process died are given to its successor. False = the caller
            gives them to another replica.

    Raises:
        ConfigError: there is not enough to share, or the runtime has no such option.
    """
    if transcribes(engine):
        return whisper.WhisperRuntime(engine, create_transcriber(engine))
    runtime_config = runtime_config or RuntimeConfig()
    if replicas is not None and replicas.min_replicas == 0:
        message = "--replicas 0-MAX is for clusters (`stoker cluster serve`); --keep-alive unloads an idle model here"
        raise ConfigError(message, key="replicas")
    if runtime_config.runtime == "vllm" and replicas is not None and replicas.max_replicas > 1:
        advice = 'use --vllm-args "--data-parallel-size N"'
        raise ConfigError(f"--replicas is not available with --runtime vllm; {advice}", key="replicas")
    encoder = create_encoder(engine) if runtime_config.runtime == "engine" else None

    def one(config: EngineConfig, *, repeats: bool) -> Runtime:
        if runtime_config.runtime == "engine":
            return EngineClient(config, supervision=supervision, repeats=repeats, volatile=volatile, encoder=encoder)
        served = vllm.VLLMServed if runtime_config.runtime == "vllm" else llama_server.LlamaServed
        return external.ExternalRuntime(
            served(config, runtime_config), config, supervision=supervision, volatile=volatile, repeats=repeats
        )

    alone = one(engine, repeats=repeats)  # it also refuses impossible settings, whichever backend computes in the end
    if replicas is None or replicas.max_replicas == 1:
        return alone
    shares = _shares(engine, replicas.max_replicas)

    def make(number: int, first: ModelCard | None) -> Runtime:
        config = shares[number] if first is None else same_sizes(shares[number], first)
        return one(config, repeats=False)  # another replica can take requests that have not begun

    return ReplicatedRuntime(LocalFleet(make, replicas), restart_wait_s=supervision.restart_wait_s)


def _shares(engine: EngineConfig, count: int) -> list[EngineConfig]:
    num_cores, ram_mib = usable_cores(), tiers.ram_tier_mib(engine, available_memory())
    if (engine.threads or num_cores) < count:
        logger.warning("%d replicas of one thread each are more than there are cores: they slow each other down", count)
    return [share_of(engine, number, count, num_cores=num_cores, ram_mib=ram_mib) for number in range(count)]


class _Makers:
    """Makes specifications; each knows how its model is measured and made.

    Args:
        config: all settings.
        cache_ram_mib: for each model, unless its settings say otherwise; None = each engine decides for itself.
        kv_share_mib: maximum size of the KV pools of each model; None = as each plans for itself.
        repeats: see `create_runtime`.
    """

    def __init__(self, config: Config, cache_ram_mib: int | None, kv_share_mib: int | None, *, repeats: bool) -> None:
        self._repeats = repeats

        self._config = config
        self._volatile = VolatileHeaders(config.server.volatile_headers)
        self._cache_ram_mib = cache_ram_mib
        self._kv_share_mib = kv_share_mib
        self._told: set[str] = set()
        """Reasons why found files cannot be served, as far as they were logged."""

    def named(self, name: str, model: ModelConfig, progress: Progress | None) -> ModelSpec:
        """A model of the command line or of the configuration file."""
        source = model.source or name
        base = self._config.engine
        engine = engine_with(base, model.engine, f"[registry.models.{name}.engine]")
        engine = self._local(msgspec.structs.replace(engine, model=source, name=base.name or name), progress)
        spec = self._spec(
            _own_names(self._config, name, model),
            engine,
            is_pinned=model.pin,
            keep_alive_s=inf if model.keep_alive == "" else parse_keep_alive(model.keep_alive),
            loads_at_start=model.load,
        )
        if model.load and (path := prepared_path(engine)):
            spare.expect(path)
        return spec

    def _local(self, engine: EngineConfig, progress: Progress | None) -> EngineConfig:
        """The configuration with the model's files on this disk."""
        runtime = self._config.runtime.runtime
        if runtime == "vllm":
            from stoker.runtime.vllm.model_folder import check_folder

            engine = local_folder(engine, progress=progress)
            check_folder(Path(engine.model_path))
            return engine
        if runtime == "llama-server":
            engine = with_local_draft(engine, progress, is_required=False)
        return local_model(engine, progress=progress)

    def found(self, folder: str) -> list[ModelSpec]:
        """The models of a folder, if there is one, those that were downloaded, and presets of them.

        It reads directories. A file that cannot be served is skipped with a warning, because no setting names it.
        """
        specs: list[ModelSpec] = []
        for found in discover_models(Path(folder).expanduser() if folder else None):
            usual = self._config.engine  # whose draft model was not chosen for these
            engine = msgspec.structs.replace(usual, model=found.model, name=found.names[0], draft_model="")
            try:
                engine = msgspec.structs.replace(with_preset(engine), model_path=str(found.path))
                names = served_names(*found.names)
                specs.append(self._spec(names, engine, keep_alive_s=_FOUND_KEEP_ALIVE_S))
            except ConfigError as error:
                self._warn_once(error.message)
        return specs

    def _warn_once(self, complaint: str) -> None:
        if complaint not in self._told:
            self._told.add(complaint)
            logger.warning("no model is made of what was found: %s", complaint)

    def _spec(self, names: tuple[str, ...], engine: EngineConfig, **more: Any) -> ModelSpec:
        check_unicode(engine)

        def make(plan: MemoryPlan | None) -> Runtime:
            return self._make(engine, plan)

        return ModelSpec(
            names=names,
            make=make,
            measure=lambda: self._measure(engine),
            path=engine.model_path,
            created=_changed_at(engine.model_path),
            **more,
        )

    def _measure(self, engine: EngineConfig) -> MemoryNeeds | None:
        if transcribes(engine):
            return measure_transcriber(engine)
        count = self._config.replicas.max_replicas
        if count > 1:
            engine = share_of(engine, 0, count, num_cores=count, ram_mib=engine.cache_ram or 0)
        needs = _needs(engine, self._config.runtime.runtime)
        if needs is None:
            return None
        if self._kv_share_mib is not None:
            needs = within_kv_share(needs, engine, self._kv_share_mib)
        if engine.cache_ram is None and self._cache_ram_mib is not None:
            needs = replace(needs, cache_bytes=max(self._cache_ram_mib * _MIB // count, needs.min_cache_bytes))
        return needs

    def _make(self, engine: EngineConfig, plan: MemoryPlan | None) -> Runtime:
        """Makes a runtime with the sizes of its plan, however much memory is free when the process starts."""
        config = self._config
        if plan is not None and engine.cache_ram is None and self._cache_ram_mib is not None:
            cache_ram = plan.cache_bytes * plan.num_replicas // _MIB
            engine = msgspec.structs.replace(engine, cache_ram=cache_ram)
        if plan is not None and (plan.num_replicas == 1 or self._kv_share_mib is not None):
            kv_tokens = plan.kv_tokens * plan.num_replicas
            most = self._most_kv_tokens(plan)
            engine = msgspec.structs.replace(
                engine, ctx_size=plan.ctx_size, kv_tokens=kv_tokens, most_kv_tokens=most if most > kv_tokens else 0
            )
        if plan is not None and plan.kv_type:
            logger.warning("memory is short: the KV cache type of %s is %s", engine.model, plan.kv_type)
            engine = msgspec.structs.replace(engine, cache_type_k=plan.kv_type, cache_type_v=plan.kv_type)
        return create_runtime(
            engine, self._volatile, config.supervision, config.replicas, config.runtime, repeats=self._repeats
        )

    def _most_kv_tokens(self, plan: MemoryPlan) -> int:
        """What the whole budget of KV has room for; 0 of a model that can neither lend nor borrow some of it."""
        budget_mib = self._config.registry.kv_budget
        if budget_mib is None or budget_mib == self._kv_share_mib:
            return 0
        if plan.num_replicas > 1 or plan.backend != "native" or plan.windows is not None:
            return 0
        return budget_mib * _MIB // plan.kv_bytes_per_token if plan.kv_bytes_per_token else 0


def _changed_at(path: str) -> int:
    """Unix time in seconds; 0: there is no such file, or no more."""
    with suppress(OSError):
        return int(os.stat(path).st_mtime)
    return 0


def _needs(engine: EngineConfig, runtime: str) -> MemoryNeeds | None:
    if runtime == "vllm":  # it takes a share of the device's memory, whatever the model is
        return None
    if runtime == "llama-server":
        return model_file.measure_model_file(engine)
    return choosing.measure(engine)


def _usual_cache_mib(config: Config, num_named: int) -> int | None:
    """RAM for the cache of each model: a quarter of the free memory, in equal parts. A single model decides itself."""
    if num_named == 1 and not _is_open(config, num_named):
        return None
    budget_mib = config.registry.memory_budget or available_memory() // _MIB
    return min(_MAX_RAM_MIB, budget_mib // _RAM_SHARE // _num_loaded(config, num_named))


def _kv_share_mib(config: Config, num_named: int) -> int | None:
    budget_mib = config.registry.kv_budget
    return None if budget_mib is None else budget_mib // _num_loaded(config, num_named)


def _num_loaded(config: Config, num_named: int) -> int:
    """Number of models that share the memory."""
    return config.registry.models_max or max(num_named, _USUAL_MODELS if _is_open(config, num_named) else 0)


def _is_open(config: Config, num_named: int) -> bool:
    """Whether models are served that the settings do not name."""
    return bool(config.registry.models_dir) or num_named == 0
