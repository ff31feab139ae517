"""Admits requests: fills in defaults, tokenizes and checks each request once, on any thread, before it is queued."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from math import inf

from stoker.core.model_info import ModelInfo
from stoker.core.params import SamplingParams
from stoker.core.request import Request, prompt_too_long
from stoker.engine.adapters import Adapters
from stoker.engine.cards import media_refused
from stoker.engine.outlines import Bounds, Outlines
from stoker.engine.prompt import echo, fewest_prompt_tokens, prompt_entries, with_text_bias
from stoker.engine.protocol import Submit
from stoker.engine.stream import Stream
from stoker.engine.traces import Tracer
from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.sampling.sampler import Sampler
from stoker.text.tokenizer import Tokenizer


class RequestIntake:
    """Turns requests into streams. Any number of threads may use it at the same time.

    Args:
        info: properties of the model.
        tokenizer: safe to use from several threads.
        sampler: opens the sampling state of each stream.
        adapters: the loaded LoRA adapters.
        defaults: values of the sampling parameters that a request leaves open; `BUILT_IN` fills in the rest.
        clock: seconds; the clock of deadlines.
        lowers_apart: see `Outlines`.
    """

    def __init__(
        self,
        info: ModelInfo,
        tokenizer: Tokenizer,
        sampler: Sampler,
        adapters: Adapters,
        *,
        defaults: SamplingParams,
        clock: Callable[[], float],
        lowers_apart: bool = False,
    ) -> None:
        self._info = info
        self._tokenizer = tokenizer
        self._sampler = sampler
        self._adapters = adapters
        self.outlines = Outlines(info, tokenizer, lowers_apart=lowers_apart)
        self._defaults = defaults
        self._clock = clock

    def admit(self, submit: Submit) -> Stream:
        """Tokenizes a request and checks all that may make the engine refuse it.

        Raises:
            InvalidInput: a parameter or token id is not possible, the prompt is empty, or the model is an encoder.
            ContextLengthExceeded: the prompt leaves no room for a completion.
            AdapterNotFound: the request selects an adapter that is not loaded.
        """
        if not self._info.can_generate:
            message = f"{self._info.name} does not generate text: it is an encoder, for embeddings or ranking"
            raise InvalidInput(f"{message}. Use /v1/embeddings, or serve another model", parameter="model")
        if submit.media:
            raise media_refused(submit.media[0].kind)  # else spans would have replaced the files' markers by now
        self._check_length(submit)
        now = self._clock()
        seed = secrets.randbits(64)
        sampling = submit.sampling.completed(self._defaults, self._info.max_sequence_tokens, seed)
        sampling = with_text_bias(self._tokenizer, sampling, submit.text_bias)
        assert sampling.seed is not None, "it was filled in"
        prompt, spans = prompt_entries(self._tokenizer, submit)
        if spans and submit.echo:
            raise UnsupportedParameter("`echo` is not available for prompts with images or audio", parameter="echo")
        lease = self._adapters.lease(submit.adapters)
        request = Request(
            request_id=submit.request_id,
            prompt=tuple(prompt),
            spans=spans,
            sampling=sampling,
            priority=submit.priority,
            client_key=submit.client_key,
            cache_prompt=submit.cache_prompt,
            adapters=lease.adapters,
            group=submit.group,
            session=submit.session.name if submit.session is not None and submit.cache_prompt else "",
            scores_prompt=submit.echo and sampling.logprobs is not None,
        )
        request.check_fits(self._info)
        outline = submit.outline
        bounds = Bounds() if outline is None else self.outlines.bounds(outline, request.sampling)
        row = self._sampler.open(request.sampling, request.prompt_tokens, sampling.seed, bounds.constraint)
        deadline = inf if submit.timeout_s is None else now + submit.timeout_s
        return Stream(
            request,
            row,
            self._tokenizer,
            prompt=echo(self._tokenizer, submit.prompt, request.prompt) if submit.echo else None,
            timeout_s=submit.timeout_s,
            deadline=deadline,
            lease=lease,
            outline=None if outline is None else self.outlines.stream(outline),
            relaxed=bounds.relaxed,
            reports_progress=submit.reports_progress,
            tracer=Tracer() if submit.traces else None,
            session=submit.session if submit.cache_prompt else None,
        )

    def close(self) -> None:
        """Ends the thread that compiles grammars."""
        self.outlines.close()

    def _check_length(self, submit: Submit) -> None:
        """Refuses a prompt of many megabytes at once, instead of after a minute of tokenization."""
        fewest = fewest_prompt_tokens(self._tokenizer, submit.prompt)
        if fewest > self._info.max_sequence_tokens:
            has_text = isinstance(submit.prompt, str) or any(isinstance(part, str) for part in submit.prompt)
            raise prompt_too_long(fewest, self._info.max_sequence_tokens, at_least=has_text)
