"""Translates the events of vLLM's answers to outputs; detokenizes, and matches stop strings and markers."""

from __future__ import annotations

from stoker.core.request import Request
from stoker.engine.outlines import StreamOutline
from stoker.engine.protocol import Output, PositionLogprobs, PromptToken, TokenLogprob, Usage
from stoker.errors import BackendError
from stoker.runtime.external.client import decode
from stoker.runtime.vllm.wire import Choice, Event, problem_error, token_id
from stoker.text.detokenizer import Detokenizer
from stoker.text.stop import StopMatcher
from stoker.text.tokenizer import Tokenizer

_DONE = b"[DONE]"
_REASONS = {"stop": "stop", "length": "length", "repetition": "stop"}


class AnswerReader:
    """Translates the events of one server's answer to one request. A repeated request gets a new reader.

    Args:
        request: the request, checked and complete.
        tokenizer: the model's tokenizer.
        ends: tokens that end every generation.
        max_tokens: 0 = only the prompt is computed.
        outline: reasoning, markers and ends to look for in the tokens.
        echo: prompt tokens to return with the first output.
    """

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        *,
        ends: frozenset[int],
        max_tokens: int,
        outline: StreamOutline,
        echo: list[PromptToken] | None = None,
    ) -> None:
        sampling = request.sampling
        self._request = request
        self._tokenizer = tokenizer
        self._ends = frozenset[int]() if sampling.ignore_eos else ends
        self._stop_token_ids = frozenset(sampling.stop_token_ids or ())
        self._min_tokens = sampling.min_tokens or 0
        self._is_prompt_only = max_tokens == 0
        self._outline = outline
        self._echo = echo
        self._detokenizer = Detokenizer(tokenizer.token_bytes)
        self._stops = StopMatcher(sampling.stop_strings + (() if sampling.ignore_eos else outline.ends))
        self._num_completion = 0
        self._num_cached = 0
        self._reason: str | None = None
        """Why vLLM ended the answer. The last output waits for the usage, which vLLM sends afterwards."""
        self._stop_match: str | int | None = None
        self.has_begun = False
        """A token was seen, so that the request cannot be repeated on another server."""

    def push(self, event: bytes) -> Output | None:
        """The output that an event adds to the answer; None if there is nothing to output yet.

        Raises:
            StokerError: the event is an error, or cannot be decoded.
        """
        if event == _DONE:
            return self._end([], "", [], []) if self._reason is not None else None
        found = decode(event, Event, "vLLM's answer")
        if found.error is not None:
            raise problem_error(found.error.code, found.error)
        if found.usage is not None and found.usage.prompt_tokens_details is not None:
            self._num_cached = found.usage.prompt_tokens_details.cached_tokens or 0
        if found.choices:
            return self._take(found.choices[0])
        return self._end([], "", [], []) if self._reason is not None else None

    def _take(self, choice: Choice) -> Output | None:
        token_ids = choice.token_ids or []
        self.has_begun = self.has_begun or bool(token_ids) or choice.finish_reason is not None
        if choice.finish_reason is not None:
            self._reason = _reason(choice.finish_reason)
        if self._is_prompt_only:
            self._reason = self._reason and "length"
            return None
        text, marks, num_taken = self._write(token_ids)
        logprobs = self._logprobs(choice)[:num_taken]
        is_stopped = self._stop_match is not None or self._stops.matched is not None
        if is_stopped and self._reason is None:
            self._reason = "stop"  # vLLM does not get stop strings, and would go on
            return self._end(token_ids[:num_taken], text, marks, logprobs)
        return self._output(token_ids[:num_taken], text, marks, logprobs) if token_ids else None

    def _write(self, token_ids: list[int]) -> tuple[str, list[tuple[int, str]], int]:
        """The text of tokens, the positions of markers in it, and the number of tokens up to a stop."""
        text, marks = "", list[tuple[int, str]]()
        for index, each in enumerate(token_ids):
            self._num_completion += 1
            is_reasoning = self._outline.follow(each)
            if each in self._ends or each in self._stop_token_ids:
                self._stop_match = each if each in self._stop_token_ids else None
                return text, marks, index + 1
            if (marker := self._outline.markers.get(each)) is not None:
                text += self._stops.flush() + self._detokenizer.flush()
                marks.append((len(text), marker))
                continue
            piece = self._detokenizer.push(each)
            is_free = (is_reasoning and self._outline.hides_stops) or self._num_completion < self._min_tokens
            text += piece if is_free else self._stops.push(piece)
            if self._stops.matched is not None:
                self._stop_match = None if self._stops.matched in self._outline.ends else self._stops.matched
                return text, marks, index + 1
        return text, marks, len(token_ids)

    def _end(
        self, token_ids: list[int], text: str, marks: list[tuple[int, str]], logprobs: list[PositionLogprobs]
    ) -> Output:
        if self._stops.matched is None:
            text += self._stops.push(self._detokenizer.flush()) + self._stops.flush()
        return self._output(token_ids, text, marks, logprobs, reason=self._reason)

    def _output(
        self,
        token_ids: list[int],
        text: str,
        marks: list[tuple[int, str]],
        logprobs: list[PositionLogprobs],
        *,
        reason: str | None = None,
    ) -> Output:
        echo, self._echo = self._echo, None
        follower, num_prompt = self._outline.reasoning, len(self._request.prompt)
        num_reasoning = 0 if follower is None else follower.num_tokens
        return Output(
            self._request.request_id,
            text,
            token_ids,
            Usage(num_prompt, self._num_completion, min(self._num_cached, num_prompt), num_reasoning),
            None if self._request.sampling.logprobs is None else logprobs,
            reason,
            self._stop_match if reason is not None else None,
            echo,
            marks=marks,
        )

    def _logprobs(self, choice: Choice) -> list[PositionLogprobs]:
        found, limit = choice.logprobs, self._request.sampling.logprobs
        if found is None or limit is None:
            return []
        return [
            self._position(name, logprob or 0.0, _likeliest(top or {}, limit))
            for name, logprob, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True)
        ]

    def _position(self, name: str, logprob: float, top: list[tuple[str, float]]) -> PositionLogprobs:
        number = token_id(name)
        is_end = number in self._ends or number in self._stop_token_ids
        is_text = not is_end and bool(self._tokenizer.token_bytes(number))
        return PositionLogprobs(self._token(name, logprob), tuple(self._token(*pair) for pair in top), is_text=is_text)

    def _token(self, name: str, logprob: float) -> TokenLogprob:
        number = token_id(name)
        return TokenLogprob(number, logprob, self._tokenizer.token_bytes(number, render_special=True))


def _likeliest(top: dict[str, float], limit: int) -> list[tuple[str, float]]:
    """The most probable tokens. vLLM also lists the chosen token, which may be less probable."""
    return sorted(top.items(), key=lambda pair: -pair[1])[:limit]


def _reason(finish_reason: str) -> str:
    if finish_reason not in _REASONS:
        raise BackendError(f"vLLM ended an answer with {finish_reason!r}")
    return _REASONS[finish_reason]
