"""Translates requests to vLLM's `/v1/completions`; `answer_reader` translates its events. It uses no connection."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import replace
from math import inf

from stoker.core.outline import GrammarText, Outline
from stoker.core.params import SamplingParams
from stoker.core.samplers import OFF, STAGES, disabling, is_usual
from stoker.errors import InvalidInput, UnsupportedParameter

SAME_NAME = (
    *("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("min_tokens", "allowed_token_ids", "ignore_eos"),
)
TRANSLATED = (
    *("top_k", "logit_bias", "banned_token_ids", "seed", "max_tokens", "stop", "stop_token_ids", "logprobs"),
    *("penalty_last_n", "samplers"),
)
REFUSED = {
    "dynatemp_range": (0.0,),
    "typical_p": (1.0,),
    "top_n_sigma": (0.0,),
    "xtc_probability": (0.0,),
    "dry_multiplier": (0.0,),
    "mirostat": (0,),
    "infill": (False,),
    "post_sampling_probs": (False,),
    "min_keep": (0, 1),
}
"""Parameters that vLLM does not support, with the values that turn each off."""
WITHOUT_EFFECT = (
    *("dynatemp_exponent", "xtc_threshold", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
    *("dry_sequence_breakers", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay"),
)
"""Parameters that have an effect only together with a stage that vLLM does not have."""
_NEVER = -100.0
"""The bias of a token that is banned: vLLM takes no lower one, and e^-100 is 0 in single precision."""
_FIELDS = {"lark": "grammar", "calls": "tools"}
"""Kinds of constraints that are not passed to vLLM, with the client's request field, for the error."""
_SALT_BYTES = 16


def with_stages(sampling: SamplingParams) -> SamplingParams:
    """Complete parameters without the stages that their list of stages does not name.

    Raises:
        UnsupportedParameter: the stages that are on are in another order than the usual one.
    """
    named = sampling.samplers
    if named is None or sampling.mirostat:
        return sampling
    on = [name for name in named if not _is_off(name, sampling)]
    if not is_usual(on):
        message = f"`samplers` must be in this order with --runtime vllm: {', '.join(n for n in STAGES if n in on)}"
        raise UnsupportedParameter(message, parameter="samplers")
    if "adaptive_p" in on:
        raise UnsupportedParameter("`adaptive_p` is not available: vLLM does not support it", parameter="samplers")
    return replace(sampling, **disabling(named), **({"infill": True} if "infill" in named else {}))


def _is_off(stage: str, sampling: SamplingParams) -> bool:
    if stage == "adaptive_p":
        return sampling.adaptive_target is None or sampling.adaptive_target < 0
    return stage != "infill" and all(getattr(sampling, name) in (None, value) for name, value in OFF[stage].items())


def check_supported(asked: SamplingParams, sampling: SamplingParams, *, scores_prompt: bool) -> None:
    """Refuses parameters that vLLM does not support.

    Args:
        asked: sampling parameters of the request itself.
        sampling: the sampling parameters, completed with defaults.
        scores_prompt: the request wants log-probabilities of the prompt.

    Raises:
        UnsupportedParameter: names the parameter.
    """
    for name, off in REFUSED.items():
        if getattr(sampling, name) not in (None, *off):
            raise UnsupportedParameter(f"`{name}` is not available: vLLM does not support it", parameter=name)
    if asked.penalty_last_n not in (None, -1) and _has_penalty(sampling):
        message = "`penalty_last_n` is not available: vLLM's penalties look at the whole text (-1)"
        raise UnsupportedParameter(message, parameter="penalty_last_n")
    if scores_prompt:
        message = "log-probabilities of the prompt are not available: vLLM streams those of the answer only"
        raise UnsupportedParameter(message, parameter="echo")


def completion_body(
    prompt: Sequence[int],
    sampling: SamplingParams,
    max_tokens: int,
    ends: frozenset[int],
    *,
    cache_prompt: bool,
    adapter: str | None = None,
) -> dict[str, object]:
    """The JSON object of a request to `/v1/completions`.

    Args:
        prompt: all tokens of the prompt.
        sampling: complete and checked sampling parameters. Stop strings are left out: `AnswerReader` matches them.
        max_tokens: maximum length of the answer in tokens: as requested, or as much as fits.
        ends: tokens that end every generation.
        cache_prompt: the request may use vLLM's prefix cache.
        adapter: name of the adapter to compute with; None = the model alone.
    """
    body: dict[str, object] = {name: value for name in SAME_NAME if (value := getattr(sampling, name)) is not None}
    stops = {*(sampling.stop_token_ids or ()), *(() if sampling.ignore_eos else ends)}
    body |= {"top_k": max(sampling.top_k or 0, 0), "stop_token_ids": sorted(stops)}
    if biases := _biases(sampling):
        body["logit_bias"] = biases
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.logprobs is not None:
        body |= {"logprobs": sampling.logprobs, "return_tokens_as_token_ids": True}
    if adapter is not None:
        body["model"] = adapter
    if not cache_prompt:
        body["cache_salt"] = secrets.token_hex(_SALT_BYTES)
    return body | {
        "prompt": list(prompt),
        # vLLM always generates a token; the reader drops it if the answer is to have none.
        "max_tokens": max(max_tokens, 1),
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


def constraint_fields(outline: Outline | None) -> dict[str, object]:
    """The fields of the request to vLLM; empty if the answer is not constrained.

    Raises:
        UnsupportedParameter: this kind of constraint is not passed to vLLM; or a constraint with reasoning or in a
            continued answer, or a reasoning budget, is not supported.
        InvalidInput: a constraint that must be JSON is not valid JSON.
    """
    if outline is None:
        return {}
    span = outline.reasoning
    if span is not None and span.budget is not None:
        message = "a budget of reasoning tokens is not available with --runtime vllm"
        raise UnsupportedParameter(message, parameter="reasoning_budget_tokens")
    if outline.grammar is None:
        return {}
    if outline.begun:
        message = "a constrained answer cannot be continued: vLLM applies a constraint to new text only"
        raise UnsupportedParameter(message, parameter="messages")
    if span is not None:
        message = "a constraint together with reasoning is not available with --runtime vllm: turn reasoning off"
        raise UnsupportedParameter(message, parameter="response_format")
    return {"structured_outputs": _structured(outline.grammar)}


def _structured(grammar: GrammarText) -> dict[str, object]:
    match grammar.kind:
        case "json_schema":
            return {"json": _parsed(grammar.text)}
        case "json_object":
            return {"json_object": True}
        case "choice":
            return {"choice": _parsed(grammar.text)}
        case "regex":
            return {"regex": grammar.text}
        case "gbnf":
            return {"grammar": grammar.text}
        case kind:
            message = f"constraints of the kind `{kind}` are not available with --runtime vllm"
            raise UnsupportedParameter(message, parameter=_FIELDS[kind])


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"the constraint is not valid JSON: {error}", parameter="response_format") from None


def _has_penalty(sampling: SamplingParams) -> bool:
    is_scaled = sampling.repetition_penalty not in (None, 1.0)
    return is_scaled or bool(sampling.presence_penalty) or bool(sampling.frequency_penalty)


def _biases(sampling: SamplingParams) -> dict[str, float]:
    given = sampling.logit_bias or {}
    biases = {str(token_id): _NEVER if bias == -inf else bias for token_id, bias in given.items()}
    return biases | {str(token_id): _NEVER for token_id in sampling.banned_token_ids or ()}
