"""Requests for embeddings and reranking, from texts to results. They get a share of each step, next to generation."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from math import inf
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from stoker.backends.base import Embedder
from stoker.core.embedding import EmbeddingInfo, EmbeddingQueue, Piece, Pooling
from stoker.core.params import BUILT_IN
from stoker.core.request import Request, check_token_ids
from stoker.core.sequence import Sequence
from stoker.core.step_cost import Rate
from stoker.engine.protocol import Event
from stoker.engine.question_messages import Embed, Embedded, Unanswered
from stoker.errors import (
    BackendError,
    ContextLengthExceeded,
    InvalidInput,
    Overloaded,
    ResourceExhausted,
    StokerError,
    Timeout,
)
from stoker.text.tokenizer import Tokenizer, encode_prompt, with_bos

MAX_QUEUED_TOKENS = 2**20
"""Maximum number of queued tokens; a larger request is accepted only while no tokens are queued."""
_RETRY_S = 5.0
_LEAST_SHARE = 0.25
"""Least time for embeddings in a step: fraction of the time of generation, or of the target if that is longer."""
_FIRST_GUESS = 128
"""Tokens of a pass while no stream (generation) runs, until the cost of a pass has been measured."""
_MIN_TOKENS = 16
"""Tokens of a pass while streams run, until its cost has been measured; a smaller pass counts as one of this size."""

Rows = NDArray[np.float32]


class EmbeddingJob:
    """One request for embeddings or scores, until all of its inputs are computed."""

    def __init__(self, embed: Embed, prompts: list[list[int]], size: int, deadline: float) -> None:
        self.embed = embed
        self.deadline = deadline
        self.sequences = [Sequence(_request(embed, index, ids)) for index, ids in enumerate(prompts)]
        self._rows: Rows = np.empty((len(prompts), size), dtype=np.float32)
        self._index = {id(sequence): index for index, sequence in enumerate(self.sequences)}
        self._num_left = len(prompts)

    @property
    def request_id(self) -> str:
        return self.embed.question_id

    @property
    def num_tokens(self) -> int:
        """Number of tokens that are still to be computed."""
        return sum(sequence.num_pending for sequence in self.sequences)

    def push(self, sequence: Sequence, row: Rows) -> bool:
        """Adds the result of one input. Returns True if it was the last one."""
        self._rows[self._index[id(sequence)]] = row
        self._num_left -= 1
        return self._num_left == 0

    def answer(self) -> Embedded:
        """All results, in the order of the inputs.

        Raises:
            BackendError: a result is NaN or infinite.
        """
        if not np.isfinite(self._rows).all():
            raise BackendError("the model's hidden states are not numbers (NaN or infinite)")
        rows = self._rows
        if self.embed.query is None:
            rows = normalised(rows[:, : self.embed.dimensions], self.embed.norm)
        num_tokens = [sequence.num_prompt for sequence in self.sequences]
        return Embedded(self.request_id, rows.astype("<f4").tobytes(), rows.shape[1], num_tokens)


class NoEmbeddings:
    """In place of `EmbeddingRequests` for a model that cannot embed.

    Args:
        name: name of the model, for error messages.
    """

    has_work = False

    def __init__(self, name: str) -> None:
        self._name = name

    def admit(self, embed: Embed) -> NoReturn:
        """Refuses every request.

        Raises:
            InvalidInput: always.
        """
        raise InvalidInput(f"{self._name} cannot embed", parameter="model")

    def add(self, job: EmbeddingJob) -> NoReturn:
        """No job is ever admitted."""
        raise AssertionError(f"{self._name} cannot embed")

    def abort(self, request_id: str) -> None:
        """Ends nothing: no request is ever admitted."""

    def step(self, used_s: float, *, has_streams: bool) -> list[Event]:
        """Computes nothing."""
        return []

    def warm_up(self) -> NoReturn:
        """A model that neither generates nor embeds is never loaded."""
        raise AssertionError(f"{self._name} neither generates nor embeds")


class EmbeddingRequests:
    """Owns the embedding jobs of an engine. Any thread may call `admit`; all else belongs to the thread that steps.

    Args:
        embedder: computes embeddings of the engine's model.
        tokenizer: safe to use from several threads.
        name: name of the model, for error messages.
        target_step_s: target duration of a step while streams (generation) run, in seconds.
        idle_step_s: target duration of a step while no streams run, in seconds.
        clock: seconds; only differences count.
    """

    def __init__(
        self,
        embedder: Embedder,
        tokenizer: Tokenizer,
        *,
        name: str,
        target_step_s: float,
        idle_step_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        info = embedder.embedding
        self._embedder = embedder
        self._tokenizer = tokenizer
        self._name = name
        self._target_step_s, self._idle_step_s = target_step_s, idle_step_s
        self._clock = clock
        self._queue = EmbeddingQueue(info)
        self._rate = Rate()
        self._jobs: dict[str, EmbeddingJob] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    def admit(self, embed: Embed) -> EmbeddingJob:
        """Tokenizes a request and checks its parameters and inputs.

        Raises:
            InvalidInput: an input has no tokens or tokens outside the vocabulary, there are no inputs, or a number is
                out of range; or the model cannot compute what is asked for.
            ContextLengthExceeded: an input is too long and must not be truncated.
        """
        now = self._clock()
        info = self._embedder.embedding
        _check(embed, info, self._name)
        prompts = embedding_token_ids(self._tokenizer, info, embed)
        for token_ids in prompts:
            check_token_ids(embed.parameter, tuple(token_ids), self._tokenizer.vocab_size)
        deadline = inf if embed.timeout_s is None else now + embed.timeout_s
        return EmbeddingJob(embed, prompts, info.size, deadline)

    def add(self, job: EmbeddingJob) -> None:
        """Queues a job that `admit` returned.

        Raises:
            Overloaded: too many tokens are queued.
        """
        if self._queue.num_tokens and self._queue.num_tokens + job.num_tokens > MAX_QUEUED_TOKENS:
            message = f"{self._queue.num_tokens} tokens are waiting to be embedded; try again in {_RETRY_S:.0f} s"
            raise Overloaded(message, retry_after_s=_RETRY_S)
        self._jobs[job.request_id] = job
        for sequence in job.sequences:
            self._queue.add(sequence)

    def abort(self, request_id: str) -> None:
        """Ends a request; nothing more is published for it. Unknown ids are ignored."""
        job = self._jobs.pop(request_id, None)
        for sequence in job.sequences if job else ():
            if sequence.num_pending:
                self._queue.remove(sequence)

    def step(self, used_s: float, *, has_streams: bool) -> list[Event]:
        """Computes one pass of queued inputs. Returns the events of jobs that have ended.

        Args:
            used_s: seconds that the current step has taken already.
            has_streams: a stream waits for its next token.
        """
        expired = self._expire()
        if not self._jobs:
            return expired
        began = self._clock()
        planned = self._queue.plan(self._num_tokens(used_s, has_streams=has_streams))
        try:
            rows = self._embedder.embed([piece for _, piece in planned])
        except (BackendError, ResourceExhausted) as error:
            return [*expired, *self._fail((sequence for sequence, _ in planned), error)]
        self._queue.update(planned)
        # Reading the weights dominates a small pass, so its duration hardly depends on the number of tokens.
        num_tokens = max(sum(len(piece.entries) for _, piece in planned), _MIN_TOKENS)
        self._rate.observe(num_tokens, self._clock() - began)
        return [*expired, *self._publish(planned, rows)]

    def warm_up(self) -> None:
        """Embeds one token, so that the first request does not pay for touching the weights.

        Raises:
            BackendError: the model cannot compute.
            ResourceExhausted: there is not enough memory.
        """
        self._embedder.embed([Piece(1, 0, (0,), is_last=True)])

    def _num_tokens(self, used_s: float, *, has_streams: bool) -> int:
        """The number of tokens that fit into the rest of the step."""
        token_s = self._rate.entry_s
        if token_s is None:
            return _MIN_TOKENS if has_streams else _FIRST_GUESS
        limit_s = self._idle_step_s
        if has_streams:
            limit_s = max(self._target_step_s - used_s, max(self._target_step_s, used_s) * _LEAST_SHARE)
        return int(limit_s / token_s)

    def _publish(self, planned: list[tuple[Sequence, Piece]], rows: Rows) -> list[Event]:
        events: list[Event] = []
        ended = (sequence for sequence, piece in planned if piece.is_last)
        for sequence, row in zip(ended, rows, strict=True):
            job = self._jobs[sequence.request.group]
            if job.push(sequence, row):
                del self._jobs[job.request_id]
                events.append(_answer(job))
        return events

    def _expire(self) -> list[Event]:
        now = self._clock()
        late = [job for job in self._jobs.values() if job.deadline <= now]
        return [self._end(job, _timeout(job)) for job in late]

    def _fail(self, sequences: Iterable[Sequence], error: StokerError) -> list[Event]:
        request_ids = dict.fromkeys(sequence.request.group for sequence in sequences)
        return [self._end(self._jobs[request_id], error) for request_id in request_ids]

    def _end(self, job: EmbeddingJob, error: StokerError) -> Unanswered:
        self.abort(job.request_id)
        return Unanswered.of(job.request_id, error)


def normalised(rows: Rows, norm: int) -> Rows:
    """Divides each row by its norm; a row of zeros stays unchanged.

    Args:
        rows: `(n, size)`.
        norm: as llama-server's `embd_normalize`: -1 = none, 0 = largest absolute value becomes 32760, p > 0 = p-norm.
    """
    if norm < 0:
        return rows
    values = rows.astype(np.float64)
    if norm == 0:
        lengths = np.abs(values).max(axis=1, keepdims=True) / 32760
    else:
        lengths = np.linalg.norm(values, ord=norm, axis=1, keepdims=True)
    return (values / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def as_rows(values: list[list[float]]) -> Rows:
    """The values as an array of shape `(inputs, size)`; without rows if their lengths differ."""
    if len(set(map(len, values))) != 1:
        return np.empty((0, 1), dtype=np.float32)
    return np.array(values, dtype=np.float32)


def _request(embed: Embed, index: int, token_ids: list[int]) -> Request:
    return Request(
        request_id=f"{embed.question_id}-{index}",
        prompt=tuple(token_ids),
        sampling=BUILT_IN,
        priority=embed.priority,
        client_key=embed.client_key,
        group=embed.question_id,
    )


def _check(embed: Embed, info: EmbeddingInfo, name: str) -> None:
    if not embed.inputs:
        raise InvalidInput(f"`{embed.parameter}` is empty: there is nothing to compute", parameter=embed.parameter)
    is_rank = info.pooling is Pooling.RANK
    if is_rank and embed.query is None:
        raise InvalidInput(f"{name} is a reranking model without embeddings: use /v1/rerank", parameter="model")
    if embed.query is not None and not is_rank:
        message = f"{name} is not a reranking model (its pooling is `{info.pooling.value}`, not `rank`)"
        raise InvalidInput(f"{message}: serve one, or compare embeddings from /v1/embeddings", parameter="model")
    if embed.dimensions is not None and not 1 <= embed.dimensions <= info.size:
        message = f"`dimensions` must be between 1 and {info.size}, the size of the embeddings of {name}"
        raise InvalidInput(f"{message}, not {embed.dimensions}", parameter="dimensions")


def _answer(job: EmbeddingJob) -> Event:
    try:
        return job.answer()
    except BackendError as error:
        return Unanswered.of(job.request_id, error)


def _timeout(job: EmbeddingJob) -> Timeout:
    timeout_s = job.embed.timeout_s
    return Timeout(f"the request was not finished within {timeout_s:g} s", timeout_s=timeout_s)


_PLACE = re.compile(r"\{(query|document)\}")


def embedding_token_ids(tokenizer: Tokenizer, info: EmbeddingInfo, embed: Embed) -> list[list[int]]:
    """The token ids of every input. Token ids are used unchanged; texts get the model's BOS, suffix or rank template.

    Raises:
        InvalidInput: an input has no tokens, or is not valid Unicode.
        ContextLengthExceeded: an input is too long and must not be truncated.
    """
    found: list[list[int]] = []
    for index, given in enumerate(embed.inputs):
        name = f"`{embed.parameter}[{index}]`"
        if isinstance(given, str) and not embed.truncates and tokenizer.fewest_tokens(given) > info.max_tokens:
            raise input_too_long(tokenizer.fewest_tokens(given), info.max_tokens, name, at_least=True)
        try:
            token_ids = _token_ids(tokenizer, info, embed, given)
        except UnicodeEncodeError as error:  # a lone surrogate: JSON can spell one
            raise InvalidInput(f"{name} is not valid Unicode: {error.reason}", parameter=embed.parameter) from error
        if not token_ids:
            raise InvalidInput(f"{name} is empty: it has no tokens", parameter=embed.parameter)
        suffix = info.suffix if isinstance(given, str) else ()
        found.append(_fitting(token_ids, len(suffix), info.max_tokens, name, truncates=embed.truncates))
    return found


def _token_ids(tokenizer: Tokenizer, info: EmbeddingInfo, embed: Embed, given: str | list[int]) -> list[int]:
    if not isinstance(given, str):
        return given
    if embed.query is None:
        return [*encode_prompt(tokenizer, given, parse_special=embed.parse_special), *info.suffix]
    if info.rank_template is not None:
        texts = {"query": embed.query, "document": given}
        return encode_prompt(tokenizer, _PLACE.sub(lambda place: texts[place[1]], info.rank_template))
    query, document = (tokenizer.encode(text, parse_special=embed.parse_special) for text in (embed.query, given))
    return with_bos(tokenizer, [*query, *info.separator, *document, *info.suffix])


def input_too_long(num_tokens: int, limit: int, name: str, *, at_least: bool = False) -> ContextLengthExceeded:
    """The error for an input of `num_tokens` tokens or, with `at_least`, of at least that number of tokens."""
    count = f"at least {num_tokens}" if at_least else num_tokens
    return ContextLengthExceeded(
        f"{name} has {count} tokens, but this model takes at most {limit}: it exceeds the available context size. "
        f"Shorten it, or request truncation.",
        num_prompt_tokens=num_tokens,
        context_size=limit,
    )


def _fitting(token_ids: list[int], num_suffix: int, limit: int, name: str, *, truncates: bool) -> list[int]:
    if len(token_ids) <= limit:
        return token_ids
    if not truncates:
        raise input_too_long(len(token_ids), limit, name)
    kept = max(limit - num_suffix, 0)
    return [*token_ids[:kept], *token_ids[len(token_ids) - (limit - kept) :]]
