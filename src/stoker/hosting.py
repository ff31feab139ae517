"""A model in processes of its own: one engine, several replicas of it, or llama-server. Nothing is started here."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from stoker.engine.config import EngineConfig, SupervisionConfig

if TYPE_CHECKING:
    from stoker.engine.cards import ModelCard
    from stoker.runtime.base import Runtime
    from stoker.runtime.llama_server.config import RuntimeConfig
    from stoker.runtime.replica_config import ReplicaConfig
    from stoker.text.volatile import VolatileHeaders

logger = logging.getLogger(__name__)


def create_runtime(
    engine: EngineConfig,
    volatile: VolatileHeaders,
    supervision: SupervisionConfig,
    replicas: ReplicaConfig | None = None,
    runtime_config: RuntimeConfig | None = None,
) -> Runtime:
    """One model, in one child process or in several replicas of it. Nothing is started yet.

    Args:
        engine: of the model as a whole, see `share_of`; with the file on this disk.
        volatile: what is dropped from the head of system prompts.
        supervision: of each child.
        replicas: how many; not given: one.
        runtime_config: who computes; not given: an engine of ours.

    Raises:
        ConfigError: there is not enough to share.
    """
    from stoker.engine.client import EngineClient
    from stoker.engine.supervisor import same_sizes
    from stoker.engine.template import Template
    from stoker.locating import prepared_path
    from stoker.runtime.local import LocalRuntime
    from stoker.runtime.replicas import ReplicatedRuntime

    def one(config: EngineConfig, template: Template | None = None) -> Runtime:
        repeats = template is None  # only a replica has others that can do it
        if runtime_config is not None and runtime_config.runtime == "llama-server":
            return _llama_server(config, volatile, supervision, runtime_config, repeats=repeats)
        client = EngineClient(config, supervision=supervision, repeats=repeats, template=template)
        return LocalRuntime(client, volatile)

    alone = one(engine)  # it also says what cannot be had, whoever computes in the end
    if replicas is None or replicas.max_replicas == 1:
        return alone
    shares = _shares(engine, replicas.max_replicas)
    template = Template(prepared_path(engine))

    def make(number: int, first: ModelCard | None) -> Runtime:
        return one(shares[number] if first is None else same_sizes(shares[number], first), template)

    return ReplicatedRuntime(make, replicas, restart_wait_s=supervision.restart_wait_s, on_closed=template.close)


def _llama_server(
    engine: EngineConfig,
    volatile: VolatileHeaders,
    supervision: SupervisionConfig,
    runtime_config: RuntimeConfig,
    *,
    repeats: bool,
) -> Runtime:
    """Raises ConfigError if something is asked for that only engines of ours have."""
    from stoker.runtime.llama_server.runtime import LlamaServerRuntime

    return LlamaServerRuntime(engine, runtime_config, supervision=supervision, volatile=volatile, repeats=repeats)


def _shares(engine: EngineConfig, count: int) -> list[EngineConfig]:
    from stoker.backends.cores import usable_cores
    from stoker.engine.tiers import ram_tier_mib
    from stoker.models.memory import available_memory
    from stoker.runtime.shares import share_of

    num_cores, ram_mib = usable_cores(), ram_tier_mib(engine, available_memory())
    if (engine.threads or num_cores) < count:
        logger.warning("%d replicas of one thread each are more than the cores: they hold each other up", count)
    return [share_of(engine, number, count, num_cores=num_cores, ram_mib=ram_mib) for number in range(count)]
