"""Stoker serves local language models from Python.

`LLM` loads a model and has blocking methods; `AsyncLLM` has the same methods for asyncio. `SamplingParams` has the
sampling parameters of a request. `Completion` is a complete answer, and `TextStream` a streamed one. `Transcriber`
turns speech into text. All errors are subclasses of `StokerError`.

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
    from stoker.engine.health import Health
    from stoker.engine.protocol import PositionLogprobs, TokenLogprob, Usage
    from stoker.engine.stats import EngineStats
    from stoker.errors import StokerError
    from stoker.llm import LLM, AsyncLLM, AsyncTextStream, Completion, TextStream, ToolCall
    from stoker.llm.transcriber import Transcriber
    from stoker.text.chat_formats.events import CallArguments, CallBegin, CallEnd, Content, Reasoning
    from stoker.text.messages import Message

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "AsyncTextStream",
    "CallArguments",
    "CallBegin",
    "CallEnd",
    "Completion",
    "Content",
    "EngineConfig",
    "EngineStats",
    "Health",
    "Message",
    "ModelCard",
    "PositionLogprobs",
    "Reasoning",
    "SamplingParams",
    "StokerError",
    "TextStream",
    "TokenLogprob",
    "ToolCall",
    "Transcriber",
    "Usage",
    "__version__",
]

_HOMES = {
    "LLM": "stoker.llm",
    "AsyncLLM": "stoker.llm",
    "AsyncTextStream": "stoker.llm",
    "CallArguments": "stoker.text.chat_formats.events",
    "CallBegin": "stoker.text.chat_formats.events",
    "CallEnd": "stoker.text.chat_formats.events",
    "Completion": "stoker.llm",
    "Content": "stoker.text.chat_formats.events",
    "EngineConfig": "stoker.engine.config",
    "EngineStats": "stoker.engine.stats",
    "Health": "stoker.engine.health",
    "Message": "stoker.text.messages",
    "ModelCard": "stoker.engine.cards",
    "PositionLogprobs": "stoker.engine.protocol",
    "Reasoning": "stoker.text.chat_formats.events",
    "SamplingParams": "stoker.core.params",
    "StokerError": "stoker.errors",
    "TextStream": "stoker.llm",
    "TokenLogprob": "stoker.engine.protocol",
    "ToolCall": "stoker.llm",
    "Transcriber": "stoker.llm.transcriber",
    "Usage": "stoker.engine.protocol",
}
"""Where each public name lives. They are imported when first asked for, so that the command line starts quickly."""

__getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    """The public names, for completion in a shell: most are not imported yet."""
    return [*__all__]
