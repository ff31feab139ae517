"""The messages between an engine and whoever uses it, in one process or across two.

Commands go in, events come out. Events are sent in frames: one list for all streams per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from stoker.cache.counters import TierCounters
from stoker.core.params import SamplingParams
from stoker.core.slot_state import SlotState
from stoker.engine.config import EngineConfig
from stoker.errors import FieldValue, StokerError, error_from_code

Prompt: TypeAlias = str | Sequence[int | str]
"""Text, token ids, or both in turn."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One token with its log-probability (natural logarithm, after no sampling transform)."""

    token_id: int
    logprob: float
    token: bytes


class PositionLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """What was chosen at one position, and the most likely alternatives (most likely first)."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


class PromptToken(msgspec.Struct, frozen=True, array_like=True):
    """One token of the prompt. Its log-probability is None for the first one, and if none was asked for."""

    token_id: int
    token: bytes
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


class FillTokens(msgspec.Struct, frozen=True):
    """The tokens that make a model fill in the middle. Not every model that can do this knows repositories."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    separator: int | None = None


class Usage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Exact token counts of one request. An end-of-generation token counts as a completion token."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens whose KV was really reused."""


class ModelCard(msgspec.Struct, frozen=True):
    """What a front end must know about a loaded model. Sizes are in tokens."""

    name: str
    backend: str
    architecture: str
    path: str
    vocab_size: int
    trained_context: int
    context_size: int
    kv_tokens: int
    parallel: int
    """Most sequences that run at the same time."""
    max_queue: int
    """Most requests that wait."""
    chat_template: str | None
    bos_token: str
    eos_token: str
    num_parameters: int
    size_bytes: int
    created: int
    """Unix time in seconds at which the model was loaded."""
    fill_tokens: FillTokens | None = None
    """None = the model cannot fill in the middle."""


class Launch(msgspec.Struct, frozen=True):
    """The one JSON line on a child's stdin: which engine to build, and the two sockets of the parent to connect to."""

    config: EngineConfig
    commands: str
    """Endpoint from which the child pulls one command per message."""
    events: str
    """Endpoint to which the child pushes frames."""
    heartbeat_every_s: float = 1.0


class Submit(msgspec.Struct, frozen=True, tag=True):
    """A new request. `prompt` is text (tokenized by the engine), token ids (taken as they are), or both in turn."""

    request_id: str
    prompt: Prompt
    sampling: SamplingParams
    """Only what the request itself says: the engine fills in its defaults."""
    priority: int = 0
    client_key: str = ""
    cache_prompt: bool = True
    timeout_s: float | None = None
    group: str = ""
    """Requests of one group have the same prompt, and compute it once."""
    echo: bool = False
    """The first output has the prompt's tokens; with log-probabilities if `sampling.logprobs` is given."""
    parse_special: bool = True
    """The text of a special token in the prompt is that token."""
    text_bias: dict[str, float] = {}
    """As `sampling.logit_bias`, for every token of these texts."""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """The caller is gone. Unknown ids are ignored."""

    request_id: str


class Tokenize(msgspec.Struct, frozen=True, tag=True):
    """A question, answered with `Tokenized`."""

    question_id: str
    text: str
    wants_bos: bool = True
    """As a prompt: BOS in front, if the model wants one and the text does not bring its own."""
    parse_special: bool = True
    """The text of a special token becomes that token."""


class Detokenize(msgspec.Struct, frozen=True, tag=True):
    """A question, answered with `Detokenized`."""

    question_id: str
    token_ids: list[int]


class ListSlots(msgspec.Struct, frozen=True, tag=True):
    """A question, answered with `SlotList`."""

    question_id: str


class EraseSlots(msgspec.Struct, frozen=True, tag=True):
    """A question, answered with `Erased`: forgets what finished conversations left behind."""

    question_id: str
    slot: int | None = None
    """None = all in which no request runs."""


Question: TypeAlias = Tokenize | Detokenize | ListSlots | EraseSlots
"""What costs no forward pass. Every question gets exactly one answer, as long as the process lives."""


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Finish nothing, free everything, exit."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded and warmed."""

    card: ModelCard


class LoadFailed(msgspec.Struct, frozen=True, tag=True):
    """The model cannot be loaded; the process exits after this."""

    code: str
    message: str
    fields: dict[str, FieldValue]

    @classmethod
    def of(cls, error: StokerError) -> LoadFailed:
        return cls(error.code, error.message, error.fields)

    def error(self) -> StokerError:
        return error_from_code(self.code, self.message, self.fields)


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """The request passed every check and is queued: from here on a response may begin."""

    request_id: str
    prompt_tokens: int


class Output(msgspec.Struct, frozen=True, tag=True):
    """What one step added to one request. The last one has a `finish_reason` (a `FinishReason` value).

    `text` may be empty (half a character, a held-back stop string); the texts of all outputs concatenated are
    the answer. `token_ids` are those sampled, including an end-of-generation token.
    """

    request_id: str
    text: str
    token_ids: list[int]
    usage: Usage
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: str | None = None
    stop_match: str | int | None = None
    """The stop string or stop token id that ended the answer, if one did."""
    prompt: list[PromptToken] | None = None
    """The prompt, on the first output of a request that asked for its echo."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The request ended with an error, before or after its first token."""

    request_id: str
    code: str
    message: str
    fields: dict[str, FieldValue]

    @classmethod
    def of(cls, request_id: str, error: StokerError) -> Failed:
        return cls(request_id, error.code, error.message, error.fields)

    def error(self) -> StokerError:
        return error_from_code(self.code, self.message, self.fields)


class Tokenized(msgspec.Struct, frozen=True, tag=True):
    question_id: str
    token_ids: list[int]
    pieces: list[bytes]
    """The text of each token; special tokens are written out."""


class Detokenized(msgspec.Struct, frozen=True, tag=True):
    question_id: str
    text: str


class SlotList(msgspec.Struct, frozen=True, tag=True):
    question_id: str
    slots: list[SlotState]


class Erased(msgspec.Struct, frozen=True, tag=True):
    question_id: str
    num_tokens: int


class Unanswered(msgspec.Struct, frozen=True, tag=True):
    """The question was refused."""

    question_id: str
    code: str
    message: str
    fields: dict[str, FieldValue]

    @classmethod
    def of(cls, question_id: str, error: StokerError) -> Unanswered:
        return cls(question_id, error.code, error.message, error.fields)

    def error(self) -> StokerError:
        return error_from_code(self.code, self.message, self.fields)


Answer: TypeAlias = Tokenized | Detokenized | SlotList | Erased | Unanswered


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """Sent about once a second. `stalled_s` is how long work has been waiting without a step being finished."""

    num_steps: int
    num_running: int
    num_waiting: int
    kv_used: int
    """Cells of running sequences."""
    kv_retained: int
    """Cells of finished conversations, there to be reused or evicted."""
    kv_capacity: int
    stalled_s: float
    tiers: TierCounters = TierCounters()
    """KV in memory and on disk, behind the pool."""


Command: TypeAlias = Submit | Abort | Question | Shutdown
Event: TypeAlias = Ready | LoadFailed | Accepted | Output | Failed | Answer | Heartbeat
Frame: TypeAlias = list[Event]
"""What one step has to say to all streams."""

EXIT_LOAD_FAILED = 3
"""Exit code of a child that has said `LoadFailed`."""
