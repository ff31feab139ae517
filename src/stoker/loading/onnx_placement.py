"""The execution provider and the device for an ONNX model: user options first, then the model's `metadata.json`."""

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
    """The provider, device and threads of an ONNX Runtime session."""

    provider: str
    device_id: int
    threads: int | None
    """Number of CPU threads; None = one for each core that this process may use."""


def placement(config: EngineConfig, facts: OnnxDescription) -> Placement:
    """Where the model is computed. Unknown providers in `metadata.json` are skipped, with a warning.

    Raises:
        ConfigError: `device_id` lists several devices, but an engine runs a graph on one.
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
