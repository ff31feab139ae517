"""The JSON of errors in each dialect; types only."""

from __future__ import annotations

from typing import Any

import msgspec


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=False):
    """OpenAI's error object. For a prompt that is too long it has the two counts that llama-server reports."""

    message: str
    type: str
    param: str | None
    code: str
    n_prompt_tokens: int | msgspec.UnsetType = msgspec.UNSET
    n_ctx: int | msgspec.UnsetType = msgspec.UNSET


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail


class AnthropicErrorDetail(msgspec.Struct, frozen=True):
    type: str
    message: str
    details: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class AnthropicError(msgspec.Struct, frozen=True, kw_only=True):
    error: AnthropicErrorDetail
    request_id: str
    type: str = "error"


class OllamaError(msgspec.Struct, frozen=True):
    """An error of Ollama's API: a whole response, or the last line of a stream."""

    error: str
