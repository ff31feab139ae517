"""Translates submitted requests to requests for llama-server, and refuses what llama-server does not support."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from stoker.core.model_info import ModelInfo
from stoker.core.params import SamplingParams
from stoker.core.request import Request, prompt_too_long
from stoker.engine.prompt import echo_of
from stoker.engine.protocol import Prompt, PromptToken, Submit
from stoker.engine.question_messages import AdapterChoice
from stoker.errors import AdapterNotFound, InvalidInput
from stoker.runtime.external.answers import Asked
from stoker.runtime.external.client import encoded
from stoker.runtime.llama_server.completion import AnswerReader, check_supported, completion_body, constraint_fields
from stoker.runtime.llama_server.media import RemoteMedia
from stoker.runtime.llama_server.tokens import PromptPiece, RemoteTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteIntake:
    """The request intake of one model. Belongs to one event loop."""

    info: ModelInfo
    """What requests are checked against."""
    can_generate: bool
    defaults: SamplingParams
    """Sampling parameters for what a request leaves out; they precede the built-in defaults."""
    tokenizer: RemoteTokenizer
    media: RemoteMedia
    """Encodes prompts with images and recordings."""

    async def admit(self, submit: Submit) -> Asked:
        """Tokenizes and checks a request.

        Raises:
            InvalidInput: a parameter or token id is invalid, the prompt is empty, or the model does not generate text.
            AdapterNotFound: the request names an adapter; llama-server has none.
            ContextLengthExceeded: the prompt leaves no room for a completion.
            StokerError: the model cannot answer now.
        """
        if not self.can_generate:
            message = f"{self.info.name} does not generate text: llama-server was started for embeddings or ranking"
            raise InvalidInput(f"{message}. Use /v1/embeddings, or serve another model", parameter="model")
        check_no_adapters(submit.adapters)
        sampling = submit.sampling.completed(self.defaults, self.info.max_sequence_tokens)
        check_supported(sampling, scores_prompt=submit.echo and sampling.logprobs is not None)
        fields = constraint_fields(submit.outline)
        if submit.text_bias:
            biases = await self.tokenizer.biases(submit.text_bias)
            sampling = replace(sampling, logit_bias={**biases, **(sampling.logit_bias or {})})
        media = await self.media.prompt(submit) if submit.media else None
        placed = cast("Prompt", submit.prompt)  # no embeddings: llama-server encodes images itself
        text = placed if media is None else self.media.text(submit)
        tokens = await self.tokenizer.prompt_tokens(text, parse_special=submit.parse_special)
        request = Request(
            request_id=submit.request_id,
            prompt=tuple(token_id for token_id, _ in tokens),
            sampling=sampling,
            priority=submit.priority,
            client_key=submit.client_key,
            cache_prompt=submit.cache_prompt,
        )
        request.check_fits(self.info)
        room = self.info.max_sequence_tokens - len(tokens)
        if room == 0:  # llama-server always generates a token
            raise prompt_too_long(len(tokens), self.info.max_sequence_tokens)
        max_tokens = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        ends = () if submit.outline is None or sampling.ignore_eos else submit.outline.ends
        body = completion_body(request.prompt, sampling, max_tokens, cache_prompt=request.cache_prompt, ends=ends)
        reader = partial(
            AnswerReader,
            request.request_id,
            len(tokens),
            logprobs=sampling.logprobs,
            max_tokens=max_tokens,
            ends=ends,
            echo=await self._echo(submit, tokens) if submit.echo else None,
            reports_progress=submit.reports_progress,
        )
        return Asked(
            submit=submit,
            request=request,
            max_tokens=max_tokens,
            deadline=None if submit.timeout_s is None else asyncio.get_running_loop().time() + submit.timeout_s,
            body=encoded({**body, **({} if media is None else {"prompt": media}), **fields}),
            reader=reader,
            room=0 if media is None else room,
        )

    async def _echo(self, submit: Submit, tokens: Sequence[PromptPiece]) -> list[PromptToken]:
        """The echoed prompt. Tokens given as ids are detokenized one by one, as only `/tokenize` returns pieces."""
        unknown = {token_id for token_id, raw in tokens if raw is None}
        looked_up = {token_id: (await self.tokenizer.text([token_id])).encode() for token_id in unknown}
        token_ids = [token_id for token_id, _ in tokens]
        pieces = [looked_up[token_id] if raw is None else raw for token_id, raw in tokens]
        return echo_of(pieces, submit.prompt, token_ids, bos_token_id=self.tokenizer.bos_token_id)


def check_no_adapters(choices: Sequence[AdapterChoice] | None) -> None:
    """Raises AdapterNotFound if a request chooses adapters; the error names the first one."""
    if choices:
        name = choices[0].name or str(choices[0].adapter_id)
        message = f"there is no adapter `{name}`: adapters are not available with llama-server"
        raise AdapterNotFound(message, adapter=name, parameter="lora")
