"""Converts the engine's outputs to the replies and chunks of OpenAI's chat completions and completions."""

from __future__ import annotations

import codecs
import time
from collections.abc import Sequence
from importlib.metadata import version
from math import exp
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from starlette.types import Scope

from stoker.chat.answers import Part, ToolCall, ToolCalls
from stoker.engine.protocol import Output, PositionLogprobs, TokenLogprob, Usage
from stoker.errors import StokerError
from stoker.server.answer import Asked, Delta, Writer
from stoker.server.dialects.openai.types import (
    AssistantMessage,
    CalledCustom,
    CalledFunction,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprob,
    ChatLogprobs,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionTokensDetails,
    CustomDelta,
    FunctionDelta,
    PromptTokensDetails,
    ReplyHead,
    ToolCallDelta,
    ToolCallReply,
    TopLogprob,
    UsageReply,
)
from stoker.server.errors import error_body
from stoker.server.generation import Generation
from stoker.server.logprobs import text_positions
from stoker.server.request.chat import StreamOptions
from stoker.server.transport.sse import DONE, error_event
from stoker.server.usage import prompt_progress, timings, trace_reply
from stoker.text.chat_formats.events import CallArguments, CallBegin, CallEnd, Content, Reasoning

_VERSION = version("stoker")

ChunkT = TypeVar("ChunkT", ChatChunkChoice, CompletionChoice)

_END = b"}\n\n"


class OpenAIWriter(Writer, Generic[ChunkT]):
    """Writes chunks, then the usage chunk if it is requested, then `[DONE]`. The constant bytes are encoded once.

    Args:
        asked: the request.
        generation: the accepted generation.
        options: the request's `stream_options`; None = the client wants no stream.
        has_timings: whether every chunk has the timings so far.
    """

    chunk_object = ""
    reply_object = ""

    def __init__(
        self, asked: Asked, generation: Generation, options: StreamOptions | None, *, has_timings: bool = False
    ) -> None:
        self._generation = generation
        self._has_timings = has_timings
        self._reply_head = _reply_head(asked, self.reply_object if options is None else self.chunk_object)
        options = options or StreamOptions()
        self._wants_usage = bool(options.include_usage)
        self._wants_running_usage = bool(options.continuous_usage_stats)
        self._num_open = generation.num_choices
        self._encoder = msgspec.json.Encoder()
        self._head = b"data: " + self._encoder.encode(self._reply_head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null' + _END if self._wants_usage else b"]" + _END

    def chunks(self, delta: Delta) -> Sequence[ChunkT]:
        """The chunks of a delta: none, one or several."""
        raise NotImplementedError

    def nothing(self, index: int) -> ChunkT:
        """A chunk that adds nothing to a choice."""
        raise NotImplementedError

    def push(self, delta: Delta) -> bytes:
        chunks = self.chunks(delta)
        if delta.progress is not None:
            tail = b'],"prompt_progress":' + self._encoder.encode(prompt_progress(delta.progress)) + _END
            return b"".join([self._chunk(chunk, tail) for chunk in chunks or [self.nothing(delta.choice)]])
        if delta.output.trace is None and not delta.is_last:
            tail = self._running_tail()
            return b"".join([self._chunk(chunk, tail) for chunk in chunks])
        self._num_open -= delta.is_last
        *others, last = chunks or [self.nothing(delta.choice)]
        tail = self._traced(self._final_tail() if delta.is_last else self._running_tail(), delta.output)
        return b"".join([*(self._chunk(chunk, self._running_tail()) for chunk in others), self._chunk(last, tail)])

    def end(self) -> bytes:
        if not self._wants_usage:
            return DONE
        return self._head + b"]" + self._usage() + self._timings() + _END + DONE

    def fail(self, error: StokerError, scope: Scope) -> bytes:
        return error_event(error_body(error))

    def _chunk(self, choice: ChunkT, tail: bytes) -> bytes:
        return self._head + self._encoder.encode(choice) + tail

    def _running_tail(self) -> bytes:
        if not self._has_timings:
            return b"]" + self._usage() + _END if self._wants_running_usage else self._tail
        usage = self._usage() if self._wants_running_usage else b""
        return b"]" + usage + self._timings() + _END

    def _final_tail(self) -> bytes:
        """The end of a choice's last chunk. The last chunk of all has `timings`, which llama-server's clients read."""
        if self._num_open or self._wants_usage:
            return self._running_tail()
        usage = self._usage() if self._wants_running_usage else b""
        return b"]" + usage + self._timings() + _END

    def _traced(self, tail: bytes, output: Output) -> bytes:
        reply = trace_reply(output)
        return tail if reply is None else tail[: -len(_END)] + b',"stoker":' + self._encoder.encode(reply) + _END

    def _usage(self) -> bytes:
        return b',"usage":' + self._encoder.encode(usage_reply(self._generation.usage))

    def _timings(self) -> bytes:
        return b',"timings":' + self._encoder.encode(timings(self._generation))

    def _shared(self) -> dict[str, Any]:
        """The fields that chat completions and completions without streaming share."""
        counts = {"usage": usage_reply(self._generation.usage), "timings": timings(self._generation)}
        return msgspec.structs.asdict(self._reply_head) | counts


class ChatWriter(OpenAIWriter[ChatChunkChoice]):
    """Writes chat completions: the first chunk of a choice has the role, the last one only the finish reason."""

    chunk_object = "chat.completion.chunk"
    reply_object = "chat.completion"

    def __init__(
        self, asked: Asked, generation: Generation, options: StreamOptions | None, *, has_timings: bool = False
    ) -> None:
        super().__init__(asked, generation, options, has_timings=has_timings)
        self._keep_thought = asked.request.thoughts.keep
        self._reasoning_field = asked.config.reasoning_field
        self._has_probs = bool(asked.request.sampling.post_sampling_probs)
        self._calls: dict[int, ToolCalls] = {}

    def chunks(self, delta: Delta) -> list[ChatChunkChoice]:
        index, output = delta.choice, delta.output
        chunks: list[ChatChunkChoice] = []
        if index not in self._calls:
            self._calls[index] = self._no_calls(index)
            chunks.append(ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content="")))
        calls, logprobs = self._calls[index], chat_logprobs(output, has_probs=self._has_probs)
        for part in delta.parts:
            if (each := self._chat_delta(part, calls)) is not None:
                chunks.append(ChatChunkChoice(index=index, delta=each, logprobs=logprobs))
                logprobs = None
        if logprobs:
            chunks.append(ChatChunkChoice(index=index, delta=ChatDelta(content=""), logprobs=logprobs))
        if delta.is_last:
            chunks.append(_chat_end(index, output, calls))
        return chunks

    def nothing(self, index: int) -> ChatChunkChoice:
        return ChatChunkChoice(index=index, delta=ChatDelta())

    def _no_calls(self, choice: int) -> ToolCalls:
        return ToolCalls("call_", f"{self._reply_head.id}/{choice}", self._keep_thought)

    def whole(self, answers: Sequence[Delta]) -> ChatCompletion:
        choices = [self._chat_choice(delta, self._no_calls(delta.choice).push_all(delta.parts)) for delta in answers]
        return ChatCompletion(choices=choices, **self._shared())

    def _chat_delta(self, part: Part, calls: ToolCalls) -> ChatDelta | None:
        """The delta of a message for a part; None for the end of a tool call, which has no chunk."""
        if isinstance(part, Content):
            return ChatDelta(content=part.text)
        calls.push(part)
        match part:
            case Reasoning():
                return msgspec.structs.replace(ChatDelta(), **{self._reasoning_field: part.text})
            case CallBegin():
                return ChatDelta(tool_calls=[_first_call_delta(calls.calls[-1])])
            case CallArguments():
                return ChatDelta(tool_calls=[_call_delta(calls.calls[-1], part.text)])
            case CallEnd():
                return None

    def _chat_choice(self, delta: Delta, calls: ToolCalls) -> ChatChoice:
        ending = _chat_end(delta.choice, delta.output, calls)
        replies = [_call_reply(call) for call in calls.calls]
        text = delta.text
        message = AssistantMessage(content=None if replies and not text else text, tool_calls=replies or UNSET)
        message = msgspec.structs.replace(message, **{self._reasoning_field: delta.reasoning or UNSET})
        return ChatChoice(
            index=delta.choice,
            message=message,
            logprobs=chat_logprobs(delta.output, has_probs=self._has_probs),
            finish_reason=ending.finish_reason,
            stop_reason=ending.stop_reason,
        )


class CompletionWriter(OpenAIWriter[CompletionChoice]):
    """Writes completions, whose chunks and whole choices have the same shape.

    Args:
        has_logprobs: whether echoed prompts have log-probabilities too.
    """

    chunk_object = "text_completion"
    reply_object = "text_completion"

    def __init__(
        self,
        asked: Asked,
        generation: Generation,
        options: StreamOptions | None,
        *,
        has_logprobs: bool,
        has_timings: bool = False,
    ) -> None:
        super().__init__(asked, generation, options, has_timings=has_timings)
        self._prompts = [prompt for prompt in asked.request.prompts for _ in range(asked.request.n)]
        self._offsets = [TextOffsets() for _ in self._prompts]
        self._has_logprobs = has_logprobs

    def chunks(self, delta: Delta) -> list[CompletionChoice]:
        index, output = delta.choice, delta.output
        text, logprobs = self._text_of(delta), self._logprobs_of(delta)
        chunks: list[CompletionChoice] = []
        if text or logprobs:
            chunks.append(CompletionChoice(index=index, text=text, logprobs=logprobs))
        if delta.is_last:
            chunks.append(_completion_end(index, output))
        return chunks

    def nothing(self, index: int) -> CompletionChoice:
        return CompletionChoice(index=index, text="")

    def whole(self, answers: Sequence[Delta]) -> Completion:
        return Completion(choices=[self._choice(answer) for answer in answers], **self._shared())

    def _choice(self, answer: Delta) -> CompletionChoice:
        ending = _completion_end(answer.choice, answer.output)
        return msgspec.structs.replace(ending, text=self._text_of(answer), logprobs=self._logprobs_of(answer))

    def _text_of(self, delta: Delta) -> str:
        return self._echo(delta.choice, delta.output) + delta.text

    def _logprobs_of(self, delta: Delta) -> CompletionLogprobs | None:
        return self._offsets[delta.choice].push(delta.output) if self._has_logprobs else None

    def _echo(self, index: int, output: Output) -> str:
        if output.prompt is None:
            return ""
        prompt = self._prompts[index]
        return (
            prompt if isinstance(prompt, str) else b"".join(t.token for t in output.prompt).decode("utf-8", "replace")
        )


def _reply_head(asked: Asked, object_name: str) -> ReplyHead:
    """The common fields of all chunks of a reply."""
    served = asked.served
    return ReplyHead(
        id=asked.request.reply_id,
        object=object_name,
        created=int(time.time()),
        model=served.model_id,
        system_fingerprint=f"stoker-{_VERSION}-{served.runtime.card.backend}",
    )


def usage_reply(usage: Usage) -> UsageReply:
    return UsageReply(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(
            usage.cached_tokens, usage.audio_tokens or UNSET, usage.image_tokens or UNSET
        ),
        completion_tokens_details=CompletionTokensDetails(usage.reasoning_tokens),
    )


def _first_call_delta(call: ToolCall) -> ToolCallDelta:
    if call.is_custom:
        return ToolCallDelta(index=call.index, id=call.call_id, type="custom", custom=CustomDelta(call.name))
    return ToolCallDelta(index=call.index, id=call.call_id, type="function", function=FunctionDelta(call.name))


def _call_delta(call: ToolCall, text: str) -> ToolCallDelta:
    if call.is_custom:
        return ToolCallDelta(index=call.index, custom=CustomDelta(input=text))
    return ToolCallDelta(index=call.index, function=FunctionDelta(arguments=text))


def _call_reply(call: ToolCall) -> ToolCallReply:
    if call.is_custom:
        return ToolCallReply(id=call.call_id, type="custom", custom=CalledCustom(call.name, call.arguments))
    function = CalledFunction(call.name, call.arguments or "{}")
    return ToolCallReply(id=call.call_id, type="function", function=function)


def _chat_end(index: int, output: Output, calls: ToolCalls) -> ChatChunkChoice:
    reason = "tool_calls" if calls.has_complete and output.finish_reason == "stop" else output.finish_reason
    return ChatChunkChoice(index=index, delta=ChatDelta(), finish_reason=reason, stop_reason=_stop_reason(output))


def _completion_end(index: int, output: Output) -> CompletionChoice:
    return CompletionChoice(index=index, text="", finish_reason=output.finish_reason, stop_reason=_stop_reason(output))


def _stop_reason(output: Output) -> str | int | UnsetType:
    return UNSET if output.stop_match is None else output.stop_match


def chat_logprobs(output: Output, *, has_probs: bool) -> ChatLogprobs | None:
    """The log-probabilities of an output in the shape of chat completions; None if there are none to report."""
    positions = text_positions(output)
    return ChatLogprobs([_chat_position(position, has_probs) for position in positions]) if positions else None


def _chat_position(position: PositionLogprobs, has_probs: bool) -> ChatLogprob:
    chosen, top = _top_logprob(position.chosen, has_probs), [_top_logprob(each, has_probs) for each in position.top]
    return ChatLogprob(chosen.token, chosen.logprob, chosen.bytes, top, chosen.prob, top if has_probs else UNSET)


def _top_logprob(token: TokenLogprob, has_probs: bool) -> TopLogprob:
    return TopLogprob(_text(token), token.logprob, list(token.token), exp(token.logprob) if has_probs else UNSET)


class TextOffsets:
    """Computes at which character of an answer's text each token begins, even if a character takes several tokens."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def push(self, output: Output) -> CompletionLogprobs | None:
        """The log-probabilities of one output, including an echoed prompt; None if there are none to report."""
        positions = text_positions(output)
        prompt = output.prompt or ()
        if not (positions or prompt):
            return None
        tokens = [*(token.token for token in prompt), *(position.chosen.token for position in positions)]
        # Tokens of the prompt that add no text have no bytes.
        added = [*(token.token for token in prompt), *(p.chosen.token if p.is_text else b"" for p in positions)]
        return CompletionLogprobs(
            tokens=[token.decode("utf-8", "replace") for token in tokens],
            token_logprobs=[*(t.logprob for t in prompt), *(position.chosen.logprob for position in positions)],
            top_logprobs=[
                *(None if token.logprob is None else _top(token.top) for token in prompt),
                *(_top(position.top) for position in positions),
            ],
            text_offset=[self._begin(raw) for raw in added],
        )

    def _begin(self, raw: bytes) -> int:
        begin = self._offset
        self._offset += len(self._decoder.decode(raw))
        return begin


def _top(tokens: Sequence[TokenLogprob]) -> dict[str, float]:
    """Log-probabilities by the text of the token, as in the API. Of tokens with the same text, the likeliest counts."""
    return {_text(token): token.logprob for token in reversed(tokens)}


def _text(token: TokenLogprob) -> str:
    return token.token.decode("utf-8", "replace")
