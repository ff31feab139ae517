"""Reads the chat template that the settings give instead of the model's own. It does not compile the template."""

from __future__ import annotations

from pathlib import Path

from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError, reason_of


def configured_template(config: EngineConfig) -> str | None:
    """The chat template that the settings or the preset give instead of the model's own; None = they give none.

    Raises:
        ConfigError: the template's file cannot be read.
    """
    if not config.chat_template_file:
        return config.preset.template or None
    path = Path(config.chat_template_file)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"the chat template {path} cannot be read: {reason_of(error)}"
        raise ConfigError(message, key="chat_template_file") from error
