"""Which provider and device compute an ONNX model: the user's word, then that of the model's package."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from stoker.backends.onnx import known_providers
from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError
from stoker.models.onnx_description import OnnxDescription

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Placement:
    """What a session of ONNX Runtime is opened with."""

    provider: str
    device_id: int
    threads: int | None
    """None = one for each core that this process may use."""


def placement(config: EngineConfig, facts: OnnxDescription) -> Placement:
    """Where the model is computed. A provider of the package that ONNX Runtime does not have is passed over.

    Raises:
        ConfigError: several devices are given for one graph.
    """
    if len(config.device_ids) > 1:
        message = f"--device-id {config.device_id}: a graph is computed on one device; --replicas uses several"
        raise ConfigError(message, key="device_id")
    hardware = facts.hardware
    known = known_providers(hardware.providers)
    if unknown := [name for name in hardware.providers if name not in known]:
        logger.warning("metadata.json asks for %s, which no ONNX Runtime has", ", ".join(unknown))
    asked = next(iter(config.device_ids), hardware.device_id)
    return Placement(
        provider=",".join(known) if known and config.provider == "auto" else config.provider,
        device_id=asked or 0,
        threads=config.threads or hardware.threads,
    )
