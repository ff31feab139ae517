"""Configuration of Ray Serve as YAML."""

from __future__ import annotations

from typing import Any

import msgspec

from stoker.errors import ConfigError


def as_yaml(document: dict[str, Any]) -> str:
    """The configuration as YAML, for display and for `serve deploy`.

    Raises:
        ConfigError: PyYAML, which comes with Ray, is not installed.
    """
    try:
        return msgspec.yaml.encode(document).decode()
    except ImportError as error:
        raise ConfigError("PyYAML is not installed: pip install 'stoker[ray]'", key="ray") from error
