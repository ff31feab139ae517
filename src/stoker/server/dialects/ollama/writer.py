"""Converts the engine's outputs to Ollama's replies."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from stoker.chat.answers import ToolCall, ToolCalls
from stoker.engine import protocol
from stoker.engine.protocol import Output
from stoker.server.answer import Delta, Writer
from stoker.server.dialects.ollama.types import (
    AnswerReply,
    CalledFunction,
    ChatMessage,
    ChatReply,
    GenerateReply,
    Logprob,
    TokenLogprob,
    ToolCallReply,
)
from stoker.server.generation import Generation
from stoker.server.logprobs import text_positions
from stoker.server.transport.sse import NDJSON

_encode = msgspec.json.Encoder().encode

MakeReply: TypeAlias = Callable[..., AnswerReply]
"""Makes a reply of one endpoint from the text of the answer and all other fields by name."""


def generate_reply(text: str, *, reasoning: str = "", calls: Sequence[ToolCall] = (), **fields: Any) -> GenerateReply:
    """The `MakeReply` of `/api/generate`, which has no tool calls."""
    return GenerateReply(response=text, thinking=reasoning or UNSET, **fields)


def chat_reply(text: str, *, reasoning: str = "", calls: Sequence[ToolCall] = (), **fields: Any) -> ChatReply:
    """The `MakeReply` of `/api/chat`, which has no `context`."""
    fields.pop("context", None)
    tool_calls = [_tool_call(call) for call in calls if call.is_complete]
    message = ChatMessage(content=text, thinking=reasoning or UNSET, tool_calls=tool_calls or UNSET)
    return ChatReply(message=message, **fields)


def _tool_call(call: ToolCall) -> ToolCallReply:
    try:
        arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        arguments = dict[str, Any]()
    return ToolCallReply(
        id=call.call_id, function=CalledFunction(index=call.index, name=call.name, arguments=arguments)
    )


def now() -> str:
    """The current time in Ollama's format."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def load_reply(make: MakeReply, model: str, reason: str = "load") -> AnswerReply:
    """The reply to a request that only loads the model or, with the reason `unload`, only unloads it."""
    return make("", model=model, created_at=now(), done=True, done_reason=reason)


class OllamaWriter(Writer):
    """Writes one answer, as lines of JSON or as a whole.

    Args:
        make: makes the replies of the endpoint.
        model: name of the model in the reply.
        generation: the accepted generation, with one choice.
        begun_s: time at which the request arrived, in seconds of `time.monotonic`.
        prompt_ids: tokens of the prompt, which `context` returns with those of the answer; None = no `context`.
        keep_thought: see `ToolCalls.keep`.
    """

    framing = NDJSON

    def __init__(
        self,
        make: MakeReply,
        model: str,
        generation: Generation,
        begun_s: float,
        prompt_ids: Sequence[int] | None = None,
        keep_thought: Callable[[str, str], None] | None = None,
    ) -> None:
        self._make = make
        self._model = model
        self._generation = generation
        self._begun_s = begun_s
        self._context = None if prompt_ids is None else list(prompt_ids)
        self._calls = ToolCalls("call_", generation.reply_id, keep_thought)
        self._num_ended = 0
        """Number of complete tool calls that were written."""

    def push(self, delta: Delta) -> bytes:
        self._note(delta.output)
        logprobs = _logprobs(delta.output)
        num_ended = self._num_ended
        text, reasoning, calls = delta.text, delta.reasoning, self._calls.push_all(delta.parts).calls
        self._num_ended = sum(call.is_complete for call in calls)
        lines: list[AnswerReply] = []
        if text or reasoning or logprobs is not UNSET or self._num_ended > num_ended:
            shown: dict[str, Any] = {"reasoning": reasoning, "logprobs": logprobs}
            lines.append(self._make(text, **self._head(done=False), **shown, calls=calls[num_ended:]))
        if delta.is_last:
            lines.append(self._make("", **self._ending(delta.output)))
        return b"".join(_encode(line) + b"\n" for line in lines)

    def whole(self, answers: Sequence[Delta]) -> AnswerReply:
        (delta,) = answers
        self._note(delta.output)
        return self._make(
            delta.text,
            **self._ending(delta.output),
            reasoning=delta.reasoning,
            calls=self._calls.push_all(delta.parts).calls,
            logprobs=_logprobs(delta.output),
        )

    def _note(self, output: Output) -> None:
        if self._context is not None:
            self._context += output.token_ids

    def _head(self, *, done: bool) -> dict[str, Any]:
        return {"model": self._model, "created_at": now(), "done": done}

    def _ending(self, output: Output) -> dict[str, Any]:
        timing = self._generation.timing
        return {
            **self._head(done=True),
            "done_reason": "length" if output.finish_reason == "length" else "stop",
            "context": UNSET if self._context is None else self._context,
            "total_duration": _nanoseconds(time.monotonic() - self._begun_s),
            "load_duration": _nanoseconds(self._generation.opened_s - self._begun_s),
            "prompt_eval_count": output.usage.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(timing.prefill_s),
            "eval_count": output.usage.completion_tokens,
            "eval_duration": _nanoseconds(timing.decode_s),
        }


def _logprobs(output: Output) -> list[Logprob] | msgspec.UnsetType:
    positions = text_positions(output)
    return [_logprob(position) for position in positions] if positions else UNSET


def _logprob(position: protocol.PositionLogprobs) -> Logprob:
    top = [TokenLogprob(**_token(token)) for token in position.top]
    return Logprob(**_token(position.chosen), top_logprobs=top)


def _token(token: protocol.TokenLogprob) -> dict[str, Any]:
    text = token.token.decode("utf-8", "replace")
    return {"token": text, "logprob": token.logprob, "bytes": list(token.token)}


def _nanoseconds(seconds: float) -> int:
    return max(0, round(1e9 * seconds))
