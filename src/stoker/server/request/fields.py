"""Types with the fields of requests that several APIs share: sampling, constraints, scheduling, streams.

`None` means "not given". The names are those of OpenAI, llama-server, vLLM and Ollama.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

Int: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""A signed 64-bit integer; JSON itself does not limit integers."""

Bias: TypeAlias = float | bool
"""A bias: a number is added to the logit, and `false` bans the token."""


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields for the sampling of tokens and the end of an answer."""

    max_tokens: Int | None = None
    """Maximum number of tokens of one answer: -1 = no limit, 0 = only compute the prompt. Five other fields mean the
    same."""
    max_completion_tokens: Int | None = None
    max_output_tokens: Int | None = None
    n_predict: Int | None = None
    num_predict: Int | None = None
    max_new_tokens: Int | None = None
    min_tokens: Int | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Int] | None = None
    """Tokens that end the answer, besides the model's own. `stop_ids` means the same."""
    stop_ids: list[Int] | None = None
    seed: int | None = None
    """Seed of the random numbers, an unsigned or signed 64-bit integer."""

    temperature: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    top_k: Int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: Int | None = None
    dry_penalty_last_n: Int | None = None
    dry_sequence_breakers: list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: Int | None = None
    mirostat: Int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    adaptive_target: float | None = None
    adaptive_decay: float | None = None
    min_keep: Int | None = None
    logit_bias: dict[str, Bias] | list[tuple[Int | str, Bias]] | None = None
    """Biases by token id or by text; every token of a text gets its bias."""
    allowed_token_ids: list[Int] | None = None
    banned_token_ids: list[Int] | None = None
    """Tokens that are never generated. `banned_tokens` means the same."""
    banned_tokens: list[Int] | None = None
    custom_token_bans: str | list[Int] | None = None
    """Further tokens that are never generated: a list, or a text with commas, as SillyTavern sends it."""
    samplers: str | list[str] | None = None
    """Sampling stages in the order in which they apply: names, or their letters in one string."""


class LoraChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter, by its name or, as in llama-server, by its id."""

    name: str | None = None
    id: Int | None = None
    scale: float | None = None
    """Scale of the adapter. Not given = 1."""


Lora: TypeAlias = str | list[str | LoraChoice]
"""Names of adapters, or adapters with scales; an empty list means the model without adapters."""


class GenerationFields(SamplingFields, frozen=True, kw_only=True):
    """Fields of every request that generates text, besides the prompt."""

    model: str | None = None
    stream: bool | None = None
    user: str | None = None
    """Name of the user: without an API key, all requests of one user get one fair share of the machine.
    `safety_identifier` means the same."""
    safety_identifier: str | None = None
    priority: Int | None = None
    """Priority of the request; a larger one is served first."""
    timeout: float | None = None
    """Maximum time for the complete answer, in seconds. `timeout_ms` is the same in milliseconds."""
    timeout_ms: Int | None = None
    cache_prompt: bool | None = None
    session_id: str | None = None
    """Name of the conversation, whose KV cache is evicted last for a while."""
    lora: Lora | None = None
    """LoRA adapters to apply. Alternatively, the model's name may end with a colon and the name of one adapter."""


class ConstrainedFields(GenerationFields, frozen=True, kw_only=True):
    """Fields that constrain the text of an answer, as in the APIs of OpenAI, llama-server, vLLM and SGLang."""

    response_format: dict[str, Any] | None = None
    """`{"type": "text"}`, `{"type": "json_object"}`, or `{"type": "json_schema", "json_schema": {"schema": …}}`."""
    json_schema: dict[str, Any] | str | bool | None = None
    """A JSON schema that the answer matches, as an object or as text."""
    grammar: str | None = None
    """A grammar in GBNF; or in Lark, if it begins with `%llguidance` or has a rule `start:`."""
    structured_outputs: dict[str, Any] | None = None
    """One of `json`, `regex`, `choice`, `grammar` and `json_object`, as in vLLM."""
    guided_json: dict[str, Any] | str | bool | None = None
    """A JSON schema, as an object or as text; older name of `structured_outputs.json`."""
    guided_regex: str | None = None
    """A regular expression that the whole answer matches."""
    guided_choice: list[str] | None = None
    """Texts, of which the answer must be one."""
    guided_grammar: str | None = None
    """A grammar in GBNF or Lark, as in `grammar`."""
    regex: str | None = None
    """A regular expression that the whole answer matches, as in SGLang."""
    ebnf: str | None = None
    """A grammar in GBNF, as in SGLang."""


class StreamedFields(ConstrainedFields, frozen=True, kw_only=True):
    """Fields of llama-server that add reports to a stream, and that end an answer at a line.

    Most reports have no effect without a stream.
    """

    timings_per_token: bool | None = None
    """True: every chunk of a stream has the timings so far."""
    return_progress: bool | None = None
    """True: chunks of a stream report the progress of the prefill before the first token."""
    post_sampling_probs: bool | None = None
    """True: log-probabilities are those after all sampling stages, from which tokens are drawn; also without a
    stream."""
    n_probs: Int | None = None
    """Number of the likeliest tokens whose log-probabilities are reported at each position; also without a stream."""
    t_max_predict_ms: Int | None = None
    """Time after the first token at which an answer ends with its current line, also without a stream; 0 or less = no
    limit."""
    n_indent: Int | None = None
    """Minimum indentation: an answer ends before a line, except the first, that begins with fewer spaces and tabs."""


class StokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options that only this server offers."""

    trace: bool | None = None
    """True: chunks of a stream have a field `stoker` that tells where their tokens came from, see `TraceReply`."""


class TracedFields(StreamedFields, frozen=True, kw_only=True):
    """Fields of requests whose streams can be traced."""

    stoker: StokerOptions | None = None
    """Options that only this server offers."""

    @property
    def traces(self) -> bool:
        """Whether the stream is traced."""
        return bool(self.stream and self.stoker is not None and self.stoker.trace)
