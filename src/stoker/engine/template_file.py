"""The chat template that the settings name instead of the model's own; it is read, and not compiled."""

from __future__ import annotations

from pathlib import Path

from stoker.engine.config import EngineConfig
from stoker.errors import ConfigError, reason_of


def configured_template(config: EngineConfig) -> str | None:
    """The chat template that the settings or the preset name instead of the model's own; None = they name none.

    Raises:
        ConfigError: its file cannot be read.
    """
    if not config.chat_template_file:
        return config.preset.template or None
    path = Path(config.chat_template_file)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        message = f"the chat template {path} cannot be read: {reason_of(error)}"
        raise ConfigError(message, key="chat_template_file") from error
