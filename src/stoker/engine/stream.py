"""The output side of one request in the engine: turns tokens into text, and detects its end. It samples no token."""

from __future__ import annotations

from math import inf, isfinite

from stoker.core.media import MediaKind
from stoker.core.request import Request
from stoker.core.sequence import FinishReason, Sequence, TokenEvent
from stoker.engine.adapters import Lease
from stoker.engine.outlines import StreamOutline
from stoker.engine.protocol import Output, PositionLogprobs, PromptToken, SessionUse, Timing, TokenLogprob, Usage
from stoker.engine.traces import Trace, Tracer
from stoker.engine.view import Progress
from stoker.sampling.candidates import Row
from stoker.sampling.logprobs import token_logprobs
from stoker.sampling.row_kernels import RowKernels
from stoker.sampling.sampler import Choice, RowState
from stoker.text.detokenizer import Detokenizer
from stoker.text.stop import StopMatcher
from stoker.text.tokenizer import Tokenizer

_NO_OUTLINE = StreamOutline()


class Stream:
    """One live request: sampled tokens are pushed into it, and `Output` events with their text are taken from it.

    Any thread may build it; from `Engine.add` on it belongs to the engine's thread.

    Args:
        request: checked and complete.
        row: the sampler's state of the request.
        prompt: the prompt's tokens if they are to be echoed; None = no echo.
        timeout_s: the client's timeout, for error messages.
        deadline: in seconds on the engine's clock.
        lease: keeps the request's LoRA adapters loaded; None = the request uses no adapters.
        outline: reasoning and markers to find in the tokens; None = all tokens are plain text.
        relaxed: descriptions of the parts of a JSON schema that are not enforced.
        reports_progress: progress of prefill is reported to the client.
        tracer: records the step of each token; None = the client wants no trace.
        session: the named session of the request; None = no session.
    """

    def __init__(
        self,
        request: Request,
        row: RowState,
        tokenizer: Tokenizer,
        *,
        prompt: list[PromptToken] | None = None,
        timeout_s: float | None = None,
        deadline: float = inf,
        lease: Lease | None = None,
        outline: StreamOutline | None = None,
        relaxed: tuple[str, ...] = (),
        reports_progress: bool = False,
        tracer: Tracer | None = None,
        session: SessionUse | None = None,
    ) -> None:
        self.request = request
        self.session = session
        self.relaxed = relaxed
        self.reports_progress = reports_progress
        self.tracer = tracer
        self._begun_at: float | None = None
        self._num_reported = 0
        self.row = row
        self.timeout_s = timeout_s
        self.deadline = deadline
        self.lease = lease or Lease((), ())
        self.sequence: Sequence | None = None
        """The scheduler's sequence of the request; set by `Engine.add`, and only read here."""
        self.finish_reason: FinishReason | None = None
        self.timing: Timing | None = None
        """Set when the request has ended, for its last output."""
        self.is_usable = True
        """False = a row of the prompt's logits held NaN, +inf or only -inf, so it gave no probabilities."""
        self._prompt = prompt
        self._num_prompt = len(request.prompt)
        self._num_audio = _num_rows(request, "audio")
        self._num_images = _num_rows(request, "image")
        self._num_scored = 0
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer.token_bytes)
        self._outline = outline or _NO_OUTLINE
        self._is_plain = outline is None and row.constraint is None
        """Every token is plain text: there is no outline, and no constraint that could end the answer."""
        stops = request.sampling.stop_strings
        stops += () if request.sampling.ignore_eos else self._outline.ends
        self._stops = StopMatcher(stops)
        self._has_stops = bool(stops)
        self._stop_token_ids = frozenset(request.sampling.stop_token_ids or ())
        self._stop_match: str | int | None = None
        self._min_tokens = request.sampling.min_tokens or 0
        self.num_completion = 0
        """Number of sampled tokens so far."""
        # Text, tokens, marks and log-probabilities added since the last `take`:
        self._marks: list[tuple[int, str]] = []
        self._text = ""
        self._token_ids: list[int] = []
        self._logprobs: list[PositionLogprobs] | None = None if request.sampling.logprobs is None else []

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def has_begun(self) -> bool:
        """A step has computed a part of the request. Any thread may ask."""
        return self.sequence is not None and self.sequence.has_begun

    @property
    def is_running(self) -> bool:
        """The request has a slot in the KV pool now."""
        return self.sequence is not None and self.sequence.slot is not None

    def push_prompt(self, row: Row, token_id: int, kernels: RowKernels | None = None) -> None:
        """Scores the next prompt token, `token_id`, with the raw logits `row` that predict it."""
        assert self._prompt is not None
        assert self.request.sampling.logprobs is not None
        self._num_scored += 1
        if not isfinite(row.max()):
            self.is_usable = False
            return
        token = self._prompt[self._num_scored]
        assert token.token_id == token_id, "rows come in the order of the prompt"
        logprob, top = token_logprobs(row, token_id, self.request.sampling.logprobs, kernels)
        self._prompt[self._num_scored] = PromptToken(
            token_id, token.token, logprob, tuple(self._logprob(*pair) for pair in top)
        )

    def push(self, choice: Choice, event: TokenEvent) -> None:
        """Adds one sampled token, or an end without a token. Sets `finish_reason` if the answer ends here."""
        assert self.finish_reason is None
        _, token_id, is_text, finish_reason = event
        self.finish_reason = finish_reason
        if token_id is None:
            return
        self.num_completion += 1
        self.lease.num_tokens += 1
        self._token_ids.append(token_id)
        if self._logprobs is not None:
            self._logprobs.append(self._position(choice, token_id, is_text))
        if not is_text and token_id in self._stop_token_ids:
            self._stop_match = token_id
        is_reasoning = False
        if not self._is_plain:
            is_reasoning = self._outline.follow(token_id)
            if is_text and self._is_whole:
                self.finish_reason = finish_reason = FinishReason.STOP
            is_text = not self._mark(token_id) and is_text
        text = self._detokenizer.push(token_id) if is_text else ""
        if is_reasoning and self._outline.hides_stops and finish_reason is None:
            self._text += text
            return
        if self._has_stops or finish_reason is not None:
            text = self._stopped(text, is_end=finish_reason is not None)
        self._text += text

    def _mark(self, token_id: int) -> bool:
        """Records a token that is a marker, which is reported separately from the text. False = it is no marker."""
        marker = self._outline.markers.get(token_id)
        if marker is None:
            return False
        self._text += self._stops.flush() + self._detokenizer.flush()
        self._marks.append((len(self._text), marker))
        return True

    @property
    def _is_whole(self) -> bool:
        """The constraint allows nothing after the last token. The row may be ahead of the stream by drafted tokens."""
        completes_at = self.row.completes_at
        return completes_at is not None and self.num_completion >= completes_at

    def progress(self, began: float, now: float) -> Output | None:
        """Progress of prefill; None = no more is computed than at the last report.

        Args:
            began: when the current step began.
            now: the current time, on the same clock.
        """
        sequence = self.sequence
        assert sequence is not None
        num_computed = min(sequence.num_computed, self._num_prompt)
        if num_computed <= self._num_reported:
            return None
        self._begun_at = began if self._begun_at is None else self._begun_at
        self._num_reported, num_cached = num_computed, min(sequence.num_cached, self._num_prompt)
        progress = Progress(self._num_prompt, num_cached, num_computed, now - self._begun_at)
        return Output(self.request_id, "", [], self._usage(0, num_cached), progress=progress)

    def _usage(self, num_completion: int, num_cached: int) -> Usage:
        follower = self._outline.reasoning
        num_reasoning = 0 if follower is None else follower.num_tokens
        return Usage(self._num_prompt, num_completion, num_cached, num_reasoning, self._num_audio, self._num_images)

    def take(self) -> Output:
        """Returns all that was pushed since the last call, as one output."""
        assert self.sequence is not None
        output = Output(
            self.request.request_id,
            self._text,
            self._token_ids,
            self._usage(self.num_completion, self.sequence.num_cached),
            self._logprobs,
            self.finish_reason.value if self.finish_reason else None,
            self._stop_match,
            self._prompt,
            self.timing,
            self._marks,
            None,
            self._trace(),
        )
        self._text, self._token_ids, self._prompt, self._marks = "", [], None, []
        if self._logprobs is not None:
            self._logprobs = []
        return output

    def _trace(self) -> Trace | None:
        if self.tracer is None:
            return None
        assert self.sequence is not None
        queue_s = None if self.timing is None else self.timing.queue_s
        return self.tracer.take(len(self._token_ids), self.sequence, queue_s)

    def _stopped(self, text: str, *, is_end: bool) -> str:
        """The part of the text that certainly belongs to the answer; a possible beginning of a stop string is held."""
        if is_end:
            text += self._detokenizer.flush()
        if self.num_completion < self._min_tokens:
            return text  # before `min_tokens`, stop strings do not count
        text = self._stops.push(text)
        if self._stops.matched is not None:
            self.finish_reason = FinishReason.STOP
            self._stop_match = None if self._stops.matched in self._outline.ends else self._stops.matched
        elif is_end:
            text += self._stops.flush()
        return text

    def _position(self, choice: Choice, token_id: int, is_text: bool) -> PositionLogprobs:
        assert choice.logprob is not None, "the sampler reports what was asked for"
        return PositionLogprobs(
            self._logprob(token_id, choice.logprob),
            tuple(self._logprob(token_id, logprob) for token_id, logprob in choice.top),
            is_text=is_text and bool(self._tokenizer.token_bytes(token_id)),
        )

    def _logprob(self, token_id: int, logprob: float) -> TokenLogprob:
        return TokenLogprob(token_id, logprob, self._tokenizer.token_bytes(token_id, render_special=True))


def _num_rows(request: Request, kind: MediaKind) -> int:
    return sum(placed.span.length for placed in request.spans if placed.span.kind == kind)
