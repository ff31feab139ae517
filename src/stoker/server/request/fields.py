"""The fields of a request that mean the same in several APIs: sampling, number of answers, fairness key. Types only.

`None` means "not given". The names are those of OpenAI, llama-server, vLLM and Ollama.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

Int: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""JSON integers have no bound; ours fit into 64 bits."""

Bias: TypeAlias = float | bool
"""A number is added to the logit; `false` bans the token."""


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that say how to choose tokens and when to stop."""

    max_tokens: Int | None = None
    """Most tokens of one answer: -1 = no limit, 0 = compute the prompt only. Five other fields mean the same."""
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
    """Unsigned or signed, in 64 bits."""

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
    logit_bias: dict[str, Bias] | list[tuple[Int | str, Bias]] | None = None
    """Biases by token id or by text; with a text, every token of it gets the bias."""
    allowed_token_ids: list[Int] | None = None
    banned_token_ids: list[Int] | None = None
    """Tokens that are never generated. `banned_tokens` means the same."""
    banned_tokens: list[Int] | None = None
    samplers: str | list[str] | None = None
    """The stages that take part, in llama-server's usual order: names, or their letters in one string."""


class LoraChoice(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter, by its name, or as llama-server by its id."""

    name: str | None = None
    id: Int | None = None
    scale: float | None = None
    """Not given = 1."""


Lora: TypeAlias = str | list[str | LoraChoice]
"""Names of adapters, or adapters with scales; an empty list asks for the model alone."""


class GenerationFields(SamplingFields, frozen=True, kw_only=True):
    """Fields of every request for text, besides the prompt."""

    model: str | None = None
    stream: bool | None = None
    user: str | None = None
    """Requests of one user share one fair share of the machine. `safety_identifier` means the same."""
    safety_identifier: str | None = None
    priority: Int | None = None
    """Priority of the request; a larger one is served first."""
    timeout: float | None = None
    """Seconds until the answer must be complete. `timeout_ms` says the same in milliseconds."""
    timeout_ms: Int | None = None
    cache_prompt: bool | None = None
    session_id: str | None = None
    """Name of the conversation: what it leaves in the KV pool is evicted last for a while."""
    lora: Lora | None = None
    """LoRA adapters to apply. Instead, the model's name may end with a colon and one adapter's name."""


class ConstrainedFields(GenerationFields, frozen=True, kw_only=True):
    """What the text of an answer must look like, in the words of OpenAI, llama-server, vLLM and SGLang."""

    response_format: dict[str, Any] | None = None
    """`{"type": "text"}`, `{"type": "json_object"}`, or `{"type": "json_schema", "json_schema": {"schema": …}}`."""
    json_schema: dict[str, Any] | str | bool | None = None
    """A JSON schema, or its text."""
    grammar: str | None = None
    """GBNF; or Lark, if it begins with `%llguidance` or has a rule `start:`."""
    structured_outputs: dict[str, Any] | None = None
    """One of `json`, `regex`, `choice`, `grammar` and `json_object`, as in vLLM."""
    guided_json: dict[str, Any] | str | bool | None = None
    """A JSON schema, or its text; older name of `structured_outputs.json`."""
    guided_regex: str | None = None
    """A regular expression that the whole answer matches."""
    guided_choice: list[str] | None = None
    """Texts of which the answer is one."""
    guided_grammar: str | None = None
    """GBNF or Lark."""
    regex: str | None = None
    """A regular expression that the whole answer matches, as in SGLang."""
    ebnf: str | None = None
    """GBNF, as in SGLang."""


class StreamedFields(ConstrainedFields, frozen=True, kw_only=True):
    """Fields that add llama-server's reports to a stream. Without a stream they have no effect."""

    timings_per_token: bool | None = None
    """Every chunk of a stream has the timings so far."""
    return_progress: bool | None = None
    """Chunks of a stream say how far the prompt is computed, before the first token."""
    post_sampling_probs: bool | None = None
    """Log-probabilities are those that a token was drawn from, behind all stages of sampling; also without a stream."""


class StokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What only this server offers."""

    trace: bool | None = None
    """Chunks of a stream have a field `stoker` that says where their tokens came from."""


class TracedFields(StreamedFields, frozen=True, kw_only=True):
    """Fields of requests whose streams can be traced."""

    stoker: StokerOptions | None = None
    """What only this server offers."""

    @property
    def traces(self) -> bool:
        """The stream is to be traced."""
        return bool(self.stream and self.stoker is not None and self.stoker.trace)
