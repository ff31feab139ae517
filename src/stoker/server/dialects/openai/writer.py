"""What the engine gives, in the shapes of OpenAI's replies. A whole reply is a fold of a stream's chunks."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from itertools import chain
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from stoker.engine.protocol import Output, Prompt, Usage
from stoker.runtime.registry import ServedModel
from stoker.server.dialects.openai.logprobs import TextOffsets, chat_logprobs
from stoker.server.dialects.openai.types import (
    AssistantMessage,
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionTokensDetails,
    PromptTokensDetails,
    Reply,
    ReplyHead,
    Timings,
    UsageReply,
)
from stoker.server.generation import Generation

_VERSION = version("stoker")

ChunkT = TypeVar("ChunkT", ChatChunkChoice, CompletionChoice)


class ReplyShape(Protocol[ChunkT]):
    """How one API writes its answers. It holds the state of one reply."""

    chunk_object: str
    reply_object: str

    def push(self, index: int, output: Output) -> Sequence[ChunkT]:
        """What this output adds to choice `index`: no, one or several chunks."""
        ...

    def fold(self, head: ReplyHead, chunks: Sequence[ChunkT], generation: Generation) -> Reply:
        """The whole reply, from all chunks of all choices, when `generation` has ended."""
        ...


class ChatShape:
    """`chat.completion`: the first chunk of a choice has the role, the last one only the finish reason."""

    chunk_object = "chat.completion.chunk"
    reply_object = "chat.completion"

    def __init__(self) -> None:
        self._begun: set[int] = set()

    def push(self, index: int, output: Output) -> list[ChatChunkChoice]:
        chunks: list[ChatChunkChoice] = []
        if index not in self._begun:
            self._begun.add(index)
            chunks.append(ChatChunkChoice(index=index, delta=ChatDelta(role="assistant", content="")))
        logprobs = chat_logprobs(output)
        if output.text or logprobs:
            chunks.append(ChatChunkChoice(index=index, delta=ChatDelta(content=output.text), logprobs=logprobs))
        if output.finish_reason is not None:
            chunks.append(_chat_end(index, output))
        return chunks

    def fold(self, head: ReplyHead, chunks: Sequence[ChatChunkChoice], generation: Generation) -> ChatCompletion:
        """See `ReplyShape.fold`."""
        choices = [_fold_chat(own) for own in _by_choice(chunks)]
        return ChatCompletion(**_head(head), choices=choices, **_counts(generation))


class CompletionShape:
    """`text_completion`: chunks and whole choices look the same.

    Args:
        prompts: what was asked for, `choices_per_prompt` choices for each.
        has_logprobs: echoed prompts have log-probabilities too.
    """

    chunk_object = "text_completion"
    reply_object = "text_completion"

    def __init__(self, prompts: Sequence[Prompt], choices_per_prompt: int, *, has_logprobs: bool) -> None:
        self._prompts = [prompt for prompt in prompts for _ in range(choices_per_prompt)]
        self._offsets = [TextOffsets() for _ in self._prompts]
        self._has_logprobs = has_logprobs

    def push(self, index: int, output: Output) -> list[CompletionChoice]:
        chunks: list[CompletionChoice] = []
        text = self._echo(index, output) + output.text
        logprobs = self._offsets[index].push(output) if self._has_logprobs else None
        if text or logprobs:
            chunks.append(CompletionChoice(index=index, text=text, logprobs=logprobs))
        if output.finish_reason is not None:
            chunks.append(_completion_end(index, output))
        return chunks

    def fold(self, head: ReplyHead, chunks: Sequence[CompletionChoice], generation: Generation) -> Completion:
        """See `ReplyShape.fold`."""
        choices = [_fold_completion(own) for own in _by_choice(chunks)]
        return Completion(**_head(head), choices=choices, **_counts(generation))

    def _echo(self, index: int, output: Output) -> str:
        if output.prompt is None:
            return ""
        prompt = self._prompts[index]
        return (
            prompt if isinstance(prompt, str) else b"".join(t.token for t in output.prompt).decode("utf-8", "replace")
        )


def reply_head(reply_id: str, object_name: str, served: ServedModel, created: int) -> ReplyHead:
    """What all chunks of a reply have in common."""
    fingerprint = f"stoker-{_VERSION}-{served.runtime.card.backend}"
    return ReplyHead(
        id=reply_id, object=object_name, created=created, model=served.model_id, system_fingerprint=fingerprint
    )


def usage_reply(usage: Usage) -> UsageReply:
    return UsageReply(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(usage.cached_tokens),
        completion_tokens_details=CompletionTokensDetails(0),  # what a model thinks is not told apart yet
    )


def timings(generation: Generation) -> Timings:
    """llama-server's block. Its `prompt_n` are the prompt tokens that were not cached."""
    usage, timing = generation.usage, generation.timing
    prompt_n = usage.prompt_tokens - usage.cached_tokens
    prompt_ms, predicted_ms = 1e3 * timing.prefill_s, 1e3 * timing.decode_s
    return Timings(
        cache_n=usage.cached_tokens,
        prompt_n=prompt_n,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=_ratio(prompt_ms, prompt_n),
        prompt_per_second=_ratio(1e3 * prompt_n, prompt_ms),
        predicted_n=usage.completion_tokens,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=_ratio(predicted_ms, usage.completion_tokens),
        predicted_per_second=_ratio(1e3 * usage.completion_tokens, predicted_ms),
        draft_n=timing.num_drafted or msgspec.UNSET,
        draft_n_accepted=timing.num_accepted if timing.num_drafted else msgspec.UNSET,
    )


def _head(head: ReplyHead) -> dict[str, Any]:
    return msgspec.structs.asdict(head)


def _counts(generation: Generation) -> dict[str, Any]:
    return {"usage": usage_reply(generation.usage), "timings": timings(generation)}


def _ratio(amount: float, per: float) -> float:
    return amount / per if per else 0.0


def _chat_end(index: int, output: Output) -> ChatChunkChoice:
    return ChatChunkChoice(
        index=index, delta=ChatDelta(), finish_reason=output.finish_reason, stop_reason=_stop_reason(output)
    )


def _completion_end(index: int, output: Output) -> CompletionChoice:
    return CompletionChoice(index=index, text="", finish_reason=output.finish_reason, stop_reason=_stop_reason(output))


def _stop_reason(output: Output) -> str | int | UnsetType:
    return UNSET if output.stop_match is None else output.stop_match


def _by_choice(chunks: Sequence[ChunkT]) -> list[list[ChunkT]]:
    grouped: dict[int, list[ChunkT]] = {}
    for chunk in chunks:
        grouped.setdefault(chunk.index, []).append(chunk)
    return [grouped[index] for index in sorted(grouped)]


def _fold_chat(chunks: Sequence[ChatChunkChoice]) -> ChatChoice:
    last = chunks[-1]
    texts = [chunk.delta.content for chunk in chunks if isinstance(chunk.delta.content, str)]
    positions = [chunk.logprobs.content for chunk in chunks if chunk.logprobs]
    return ChatChoice(
        index=last.index,
        message=AssistantMessage(content="".join(texts)),
        logprobs=ChatLogprobs(list(chain.from_iterable(positions))) if positions else None,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )


def _fold_completion(chunks: Sequence[CompletionChoice]) -> CompletionChoice:
    last = chunks[-1]
    parts = [chunk.logprobs for chunk in chunks if chunk.logprobs]
    return CompletionChoice(
        index=last.index,
        text="".join(chunk.text for chunk in chunks),
        logprobs=_join(parts) if parts else None,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
    )


def _join(parts: Sequence[CompletionLogprobs]) -> CompletionLogprobs:
    return CompletionLogprobs(
        tokens=list(chain.from_iterable(part.tokens for part in parts)),
        token_logprobs=list(chain.from_iterable(part.token_logprobs for part in parts)),
        top_logprobs=list(chain.from_iterable(part.top_logprobs for part in parts)),
        text_offset=list(chain.from_iterable(part.text_offset for part in parts)),
    )
