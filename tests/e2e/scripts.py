"""A server whose answers are those that a model of the `qwen3` family would write, from a script."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.conftest import serving

TEMPLATE = Path("tests/golden/chat_templates/qwen3.jinja").resolve()


@contextmanager
def serving_script(folder: Path, script: list[Any]) -> Generator[str]:
    """Gives the server's URL; `folder` gets the script and the log."""
    (folder / "script.json").write_text(json.dumps(script))
    options = ("--script", str(folder / "script.json"), "--chat-template-file", str(TEMPLATE))
    with serving("scripted", *options, log=folder / "log") as server:
        yield server.url
