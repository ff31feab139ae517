"""One request as the engine sees it: tokens, numbers, priority. Checked at the door, never again inside."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.core.batch import AdapterSet, Entry
from stoker.core.media import PlacedSpan
from stoker.core.model_info import ModelInfo
from stoker.core.params import SamplingParams
from stoker.errors import ContextLengthExceeded, InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one answer needs. `sampling` is complete: every layer of defaults is already filled in.

    Raises:
        InvalidInput: the prompt is empty.
    """

    request_id: str
    prompt: tuple[Entry, ...]
    sampling: SamplingParams
    priority: int = 0
    """Larger is served first."""
    client_key: str = ""
    """Requests of one key share one fair share of the machine."""
    cache_prompt: bool = True
    """False: neither reads what is resident nor leaves anything behind."""
    adapters: AdapterSet = ()
    """KV that was computed with one set is never read with another."""
    group: str = ""
    """Requests of one group have the same prompt and compute it once; with `cache_prompt=False` as long as one runs."""
    session: str = ""
    """What it leaves in the pool is evicted after what belongs to no session, instead of what the session left before.
    Empty = it belongs to none."""
    scores_prompt: bool = False
    """A row of logits is wanted for every prompt entry, so none of them may come from the cache."""
    spans: tuple[PlacedSpan, ...] = ()
    """Which entries of the prompt are rows of images, in their order. All others are token ids."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise InvalidInput("the prompt is empty: it has no tokens", parameter="prompt")

    @property
    def prompt_tokens(self) -> tuple[int, ...]:
        """The entries of the prompt that are token ids."""
        return self._tokens() if self.spans else self.prompt

    def _tokens(self) -> tuple[int, ...]:
        found: list[int] = []
        end = 0
        for placed in self.spans:
            found += self.prompt[end : placed.start]
            end = placed.end
        return (*found, *self.prompt[end:])

    def check_fits(self, info: ModelInfo) -> None:
        """Refuses, before it is queued, a request that this model could never run.

        Raises:
            InvalidInput: a token id outside the vocabulary.
            ContextLengthExceeded: no room is left for a completion token, and the request asks for one.
        """
        check_token_ids("prompt", self.prompt_tokens, info.vocab_size)
        self._check_spans(info)
        params = self.sampling
        for name in ("logit_bias", "allowed_token_ids", "banned_token_ids", "stop_token_ids"):
            check_token_ids(name, tuple(getattr(params, name) or ()), info.vocab_size)
        limit = info.max_sequence_tokens
        room_needed = 0 if params.max_tokens == 0 else 1
        if len(self.prompt) + room_needed > limit:
            raise prompt_too_long(len(self.prompt), limit)

    def _check_spans(self, info: ModelInfo) -> None:
        """A span that is seen whole is computed in one step, beside what the others need."""
        most = info.max_batch_tokens - info.num_slots
        longest = max((placed.span.length for placed in self.spans if placed.span.is_whole), default=0)
        if longest > max(0, most):
            message = f"an image takes {longest} tokens, which must be computed in one step; the maximum is {most}"
            raise InvalidInput(message, parameter="messages")


def prompt_too_long(num_tokens: int, limit: int, *, at_least: bool = False) -> ContextLengthExceeded:
    """The refusal of a prompt of so many tokens or, with `at_least`, of a text that is so many or more."""
    count = f"at least {num_tokens}" if at_least else num_tokens
    return ContextLengthExceeded(
        f"This model's maximum context length is {limit} tokens, but the prompt has {count} tokens: "
        f"the request exceeds the available context size. Shorten it, or raise --ctx-size and --kv-tokens.",
        num_prompt_tokens=num_tokens,
        context_size=limit,
    )


def check_token_ids(name: str, token_ids: tuple[int, ...], vocab_size: int) -> None:
    """Raises InvalidInput, which names the parameter, if an id is outside of the vocabulary."""
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        culprit = next(t for t in token_ids if not 0 <= t < vocab_size)
        raise InvalidInput(f"`{name}`: token id {culprit} is outside the vocabulary of {vocab_size}", parameter=name)
