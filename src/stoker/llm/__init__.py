"""The Python API: `LLM` and `AsyncLLM`. It decides nothing about the model: it asks, waits, and hands over answers."""

from stoker.llm.aio import AsyncLLM, AsyncTextStream
from stoker.llm.completion import Completion, ToolCall
from stoker.llm.inputs import Conversation, Prompt
from stoker.llm.sync import LLM, TextStream

__all__ = ["LLM", "AsyncLLM", "AsyncTextStream", "Completion", "Conversation", "Prompt", "TextStream", "ToolCall"]
