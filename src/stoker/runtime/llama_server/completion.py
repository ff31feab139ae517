"""Translates requests, with their constraints, to llama-server's `/completion`, and its events back to outputs.

It uses no connection.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from math import inf, log

from stoker.core.outline import Outline
from stoker.core.params import SamplingParams
from stoker.core.samplers import USUAL
from stoker.engine.inbox import merge
from stoker.engine.protocol import Output, PositionLogprobs, Progress, PromptToken, Timing, TokenLogprob, Usage
from stoker.errors import BackendError, InvalidInput, UnsupportedParameter
from stoker.runtime.external.client import decode
from stoker.runtime.llama_server import wire
from stoker.runtime.llama_server.wire import Completion, Position, Probability, Timings, problem_error

SAME_NAME = (
    *("temperature", "dynatemp_range", "dynatemp_exponent", "top_p", "min_p", "typical_p", "top_n_sigma"),
    *("xtc_probability", "xtc_threshold", "dry_multiplier", "dry_base", "dry_allowed_length"),
    *("presence_penalty", "frequency_penalty", "mirostat", "mirostat_tau", "mirostat_eta", "ignore_eos"),
    *("adaptive_target", "adaptive_decay", "min_keep", "samplers"),
)
OTHER_NAME = {"repetition_penalty": "repeat_penalty"}
LOOKS_BACK = {"penalty_last_n": "repeat_last_n", "dry_penalty_last_n": "dry_penalty_last_n"}
"""Parameters whose value -1 means all tokens, with llama-server's names. New versions have no such value."""
TRANSLATED = (
    *("top_k", "dry_sequence_breakers", "logit_bias", "banned_token_ids"),
    *("seed", "max_tokens", "stop", "logprobs", "post_sampling_probs", "infill"),
)
REFUSED = ("allowed_token_ids", "min_tokens", "stop_token_ids")
"""Parameters that llama-server does not support."""

_RANDOM_SEED = 2**32 - 1
"""The value that llama-server takes as "random"; its seeds have 32 bits."""
_OFF = {"min_p": 0.0}
"""Values that turn a sampler stage off. llama-server has it on by default; Stoker's other engines do not."""
_NEVER = -100.0
"""Log-probability of a token that cannot occur, because JSON has no minus infinity."""


def check_supported(sampling: SamplingParams, *, scores_prompt: bool) -> None:
    """Refuses sampling parameters that llama-server does not support.

    Raises:
        UnsupportedParameter: names the parameter.
    """
    asked = [name for name in REFUSED if getattr(sampling, name)]
    if sampling.dry_sequence_breakers == () and sampling.dry_multiplier:
        asked.append("dry_sequence_breakers")
    if asked:
        raise UnsupportedParameter(
            f"`{asked[0]}` is not available: llama-server does not support it", parameter=asked[0]
        )
    if scores_prompt:
        message = "log-probabilities of the prompt are not available: llama-server has those of the answer only"
        raise UnsupportedParameter(message, parameter="echo")


def completion_body(
    prompt: Sequence[int], sampling: SamplingParams, max_tokens: int, *, cache_prompt: bool, ends: Sequence[str] = ()
) -> dict[str, object]:
    """The JSON object of a request to `/completion`.

    Args:
        prompt: all tokens of the prompt.
        sampling: complete and checked sampling parameters.
        max_tokens: maximum length of the answer in tokens: as requested, or as much as fits.
        cache_prompt: the request may use KV from llama-server's cache.
        ends: texts that end the answer, beside the stop strings.
    """
    body: dict[str, object] = {name: getattr(sampling, name) for name in SAME_NAME}
    body |= {theirs: getattr(sampling, ours) for ours, theirs in OTHER_NAME.items()}
    looks_back = {theirs: getattr(sampling, ours) for ours, theirs in LOOKS_BACK.items()}
    body |= {theirs: len(prompt) + max_tokens if value == -1 else value for theirs, value in looks_back.items()}
    body = _OFF | {name: value for name, value in body.items() if value is not None}
    body |= {
        "top_k": max(sampling.top_k or 0, 0),
        "seed": _seed(sampling.seed),
        "stop": [*sampling.stop_strings, *ends],
    }
    if sampling.dry_sequence_breakers:
        body["dry_sequence_breakers"] = list(sampling.dry_sequence_breakers)
    if biases := _biases(sampling):
        body["logit_bias"] = biases
    if sampling.infill and sampling.samplers is None:
        body["samplers"] = list(USUAL)
    if sampling.logprobs is not None:
        body["n_probs"] = max(sampling.logprobs, 1)
        body |= {"post_sampling_probs": True} if sampling.post_sampling_probs else {}
    return body | {
        "prompt": list(prompt),
        # llama-server always generates a token; the reader drops it if the answer is to have none.
        "n_predict": max(max_tokens, 1),
        "cache_prompt": cache_prompt,
        "stream": True,
        "return_tokens": True,
        "return_progress": True,
    }


class AnswerReader:
    """Translates the events of one server's answer to one request. A repeated request gets a new reader.

    Args:
        request_id: the request's id.
        num_prompt: number of prompt tokens.
        logprobs: see `SamplingParams.logprobs`.
        max_tokens: 0 = only the prompt is computed.
        ends: texts that end the answer and are not stop strings of the client.
        echo: prompt tokens to return with the first output.
        reports_progress: see `Submit.reports_progress`.
    """

    def __init__(
        self,
        request_id: str,
        num_prompt: int,
        *,
        logprobs: int | None = None,
        max_tokens: int = 1,
        ends: Sequence[str] = (),
        echo: list[PromptToken] | None = None,
        reports_progress: bool = False,
    ) -> None:
        self._request_id = request_id
        self._num_prompt = num_prompt
        self._logprobs = logprobs
        self._is_prompt_only = max_tokens == 0
        self._ends = ends
        self._echo = echo
        self._reports_progress = reports_progress
        self._num_cached = 0
        self._num_completion = 0
        self._withheld: list[Output] = []
        """Outputs whose tokens have no text yet, held back because the last one may turn out to end the answer."""
        self.has_begun = False
        """A token was seen, so that the request cannot be repeated on another server."""

    def push(self, event: bytes) -> Output | None:
        """The output that an event adds to the answer; None if there is nothing to output yet.

        Raises:
            StokerError: the event is an error, or cannot be decoded.
        """
        completion = decode(event, Completion, "llama-server's answer")
        if completion.error is not None:
            raise problem_error(completion.error.code, completion.error)
        if completion.prompt_progress is not None:
            self._num_prompt = max(self._num_prompt, completion.prompt_progress.total)
            self._num_cached = completion.prompt_progress.cache
            return self._progress(completion.prompt_progress) if self._reports_progress else None
        self._count(completion)
        if self._is_prompt_only:
            return self._output(completion, "length") if completion.stop else None
        reason = _finish_reason(completion) if completion.stop else None
        self._withheld.append(self._output(completion, reason))
        if not completion.content and reason is None:
            return None
        withheld, self._withheld = self._withheld, []
        return merge(withheld)

    def _progress(self, found: wire.Progress) -> Output:
        usage = Usage(self._num_prompt, 0, min(self._num_cached, self._num_prompt))
        progress = Progress(found.total, found.cache, found.processed, found.time_ms / 1e3)
        return Output(self._request_id, "", [], usage, progress=progress)

    def _count(self, completion: Completion) -> None:
        self.has_begun = self.has_begun or bool(completion.tokens or completion.content or completion.stop)
        self._num_completion = completion.tokens_predicted or self._num_completion + len(completion.tokens)
        timings = completion.timings
        if timings is not None and timings.cache_n is not None:
            self._num_cached = timings.cache_n
        elif timings is not None and timings.prompt_n is not None:
            self._num_cached = max(0, self._num_prompt - timings.prompt_n)

    def _output(self, completion: Completion, reason: str | None) -> Output:
        echo, self._echo = self._echo, None
        has_tokens = not self._is_prompt_only
        positions = [self._position(position) for position in completion.completion_probabilities if has_tokens]
        return Output(
            self._request_id,
            completion.content if has_tokens else "",
            completion.tokens if has_tokens else [],
            Usage(self._num_prompt, self._num_completion if has_tokens else 0, min(self._num_cached, self._num_prompt)),
            None if self._logprobs is None else positions,
            reason,
            self._stop_match(completion),
            echo,
            None if reason is None else _timing(completion.timings),
        )

    def _stop_match(self, completion: Completion) -> str | None:
        is_stop = completion.stop_type == "word" and completion.stopping_word not in self._ends
        return completion.stopping_word if is_stop else None

    def _position(self, position: Position) -> PositionLogprobs:
        top = (position.top_logprobs or position.top_probs)[: self._logprobs]
        return PositionLogprobs(_token(position), tuple(map(_token, top)))


def _timing(timings: Timings | None) -> Timing | None:
    if timings is None or timings.prompt_ms is None or timings.predicted_ms is None:
        return None
    drafts = timings.draft_n, timings.draft_n_accepted
    return Timing(timings.prompt_ms / 1e3, timings.predicted_ms / 1e3, *drafts)


def _token(token: Probability) -> TokenLogprob:
    logprob = log(token.prob) if token.prob else token.logprob
    return TokenLogprob(token.id, _NEVER if logprob is None else logprob, bytes(token.bytes))


def _finish_reason(completion: Completion) -> str:
    reasons = {"eos": "stop", "word": "stop", "limit": "length"}
    if completion.stop_type not in reasons:
        raise BackendError(f"llama-server ended an answer with {completion.stop_type or 'no reason'!r}")
    return reasons[completion.stop_type]


def _seed(seed: int | None) -> int:
    return secrets.randbelow(_RANDOM_SEED) if seed is None else seed % _RANDOM_SEED


def _biases(sampling: SamplingParams) -> list[tuple[int, float | bool]]:
    """Logit biases as pairs of a token id and a bias; the bias `False` bans the token."""
    biases = [(token_id, False if bias == -inf else bias) for token_id, bias in (sampling.logit_bias or {}).items()]
    return [*biases, *((token_id, False) for token_id in sampling.banned_token_ids or ())]


_KINDS = {"regex": "regex", "choice": "structured_outputs", "lark": "grammar"}
"""Kinds of constraints that llama-server does not support, with the client's request field, for the error."""


def constraint_fields(outline: Outline | None) -> dict[str, object]:
    """The fields of the request to llama-server; empty if the answer is not constrained.

    Raises:
        UnsupportedParameter: llama-server does not support this kind of constraint, a constraint in a continued answer,
            a reasoning budget, or ending reasoning during the stream.
        InvalidInput: the JSON schema is not valid JSON.
    """
    if outline is None:
        return {}
    if outline.reasoning is not None and outline.reasoning.budget is not None:
        message = "a budget of reasoning tokens is not available: llama-server has no budget per request"
        raise UnsupportedParameter(message, parameter="reasoning_budget_tokens")
    if outline.reasoning is not None and outline.reasoning.can_be_ended:
        message = "reasoning cannot be ended during the stream with --runtime llama-server"
        raise UnsupportedParameter(message, parameter="reasoning_control")
    grammar = outline.grammar
    if grammar is None:
        return {}
    if outline.begun:
        message = "a constrained answer cannot be continued: llama-server applies a constraint to new text only"
        raise UnsupportedParameter(message, parameter="messages")
    match grammar.kind:
        case "json_schema":
            return {"json_schema": _schema(grammar.text)}
        case "json_object":
            return {"json_schema": {"type": "object"}}
        case "gbnf":
            return {"grammar": grammar.text}
        case kind:
            message = f"constraints of the kind `{kind}` are not available: llama-server does not support them"
            raise UnsupportedParameter(message, parameter=_KINDS.get(kind, "response_format"))


def _schema(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"the JSON schema is not valid JSON: {error}", parameter="response_format") from None
