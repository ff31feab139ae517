"""Which processes a model gets."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.engine.config import EngineConfig, SupervisionConfig
from stoker.errors import ConfigError
from stoker.hosting import create_runtime
from stoker.runtime.local import LocalRuntime
from stoker.runtime.replica_config import ReplicaConfig
from stoker.runtime.replicas import ReplicatedRuntime
from stoker.text.volatile import VolatileHeaders


def test_one_engine_or_several_replicas(caplog: pytest.LogCaptureFixture) -> None:
    def make(replicas: int | str, **config: Any) -> object:
        engine = EngineConfig(model="scripted", backend="scripted", **config)
        return create_runtime(engine, VolatileHeaders(()), SupervisionConfig(), ReplicaConfig(replicas=replicas))

    assert isinstance(make(1), LocalRuntime)
    assert isinstance(make("1-2", threads=2), ReplicatedRuntime)
    assert not caplog.messages
    make(3, threads=2)
    assert caplog.messages == ["3 replicas of one thread each are more than the cores: they hold each other up"]
    with pytest.raises(ConfigError, match="use --kv-tokens 1024, or fewer replicas"):
        make(2, threads=2, ctx_size=512, kv_tokens=600)
