"""One request as the scheduler sees it: prompt, sampling, priority. It is checked once, before it is queued."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.core.batch import AdapterSet, Entry
from stoker.core.media import PlacedSpan
from stoker.core.model_info import ModelInfo
from stoker.core.params import SamplingParams
from stoker.errors import ContextLengthExceeded, InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Everything needed to generate one answer. In `sampling`, every layer of defaults is already filled in.

    Raises:
        InvalidInput: the prompt is empty.
    """

    request_id: str
    prompt: tuple[Entry, ...]
    sampling: SamplingParams
    priority: int = 0
    """Larger is served first."""
    client_key: str = ""
    """Fairness: clients get equal shares of the computed tokens; requests with one key count as one client."""
    cache_prompt: bool = True
    """False: the request neither reads the prefix cache nor leaves KV in it, except within its `group`."""
    adapters: AdapterSet = ()
    """LoRA adapters. KV that was computed with one set of adapters is never reused with another set."""
    group: str = ""
    """Requests of one group compute their common prompt once; with `cache_prompt=False`, while one of them runs."""
    session: str = ""
    """The latest KV of a session is evicted after all KV without a session; older KV of the session loses this
    preference. Empty = no session."""
    scores_prompt: bool = False
    """Logits are wanted for every prompt entry, so that no prompt entry may come from the cache."""
    spans: tuple[PlacedSpan, ...] = ()
    """The image rows in the prompt, in order. All other entries are token ids."""

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
        """Checks that the model can run the request at all; called before the request is queued.

        Raises:
            InvalidInput: a token id is outside the vocabulary, or an image needs more than one step.
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
        """A span with bidirectional attention is computed in one step, which must also have room for the decodes."""
        most = info.max_batch_tokens - info.num_slots
        longest = max((placed.span.length for placed in self.spans if placed.span.is_whole), default=0)
        if longest > max(0, most):
            message = f"an image takes {longest} tokens, which must be computed in one step; the maximum is {most}"
            raise InvalidInput(message, parameter="messages")


def prompt_too_long(num_tokens: int, limit: int, *, at_least: bool = False) -> ContextLengthExceeded:
    """The error for a prompt of `num_tokens` tokens or, with `at_least`, of at least that number of tokens."""
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
