"""Stoker serves local language models from Python.

>>> from stoker import LLM, SamplingParams
>>> with LLM("smollm2") as llm:  # doctest: +SKIP
...     print(llm.generate("Once upon a time", SamplingParams(max_tokens=20)).text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.lazy import lazy_names

if TYPE_CHECKING:
    from stoker.core.params import SamplingParams
    from stoker.engine.cards import ModelCard
    from stoker.engine.config import EngineConfig
    from stoker.engine.protocol import PositionLogprobs, TokenLogprob, Usage
    from stoker.errors import StokerError
    from stoker.llm import LLM, AsyncLLM, AsyncTextStream, Completion, TextStream
    from stoker.text.messages import Message

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "AsyncTextStream",
    "Completion",
    "EngineConfig",
    "Message",
    "ModelCard",
    "PositionLogprobs",
    "SamplingParams",
    "StokerError",
    "TextStream",
    "TokenLogprob",
    "Usage",
    "__version__",
]

_HOMES = {
    "LLM": "stoker.llm",
    "AsyncLLM": "stoker.llm",
    "AsyncTextStream": "stoker.llm",
    "Completion": "stoker.llm",
    "EngineConfig": "stoker.engine.config",
    "Message": "stoker.text.messages",
    "ModelCard": "stoker.engine.cards",
    "PositionLogprobs": "stoker.engine.protocol",
    "SamplingParams": "stoker.core.params",
    "StokerError": "stoker.errors",
    "TextStream": "stoker.llm",
    "TokenLogprob": "stoker.engine.protocol",
    "Usage": "stoker.engine.protocol",
}
"""Where each public name lives. They are imported when first asked for, so that the command line starts quickly."""

__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    """The public names, for completion in a shell: most are not imported yet."""
    return [*__all__]
