"""The messages between an engine and whoever uses it, in one process or across two.

Commands go in, events come out. Events are sent in frames: one list for all streams per step.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stoker.core.params import SamplingParams
from stoker.engine.config import EngineConfig
from stoker.errors import FieldValue, StokerError, error_from_code


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One token with its log-probability (natural logarithm, after no sampling transform)."""

    token_id: int
    logprob: float
    token: bytes


class PositionLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """What was chosen at one position, and the most likely alternatives (most likely first)."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]


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


class Launch(msgspec.Struct, frozen=True):
    """The one JSON line on a child's stdin: which engine to build, and the two sockets of the parent to connect to."""

    config: EngineConfig
    commands: str
    """Endpoint from which the child pulls one command per message."""
    events: str
    """Endpoint to which the child pushes frames."""
    heartbeat_every_s: float = 1.0


class Submit(msgspec.Struct, frozen=True, tag=True):
    """A new request. `prompt` is text (tokenized by the engine) or token ids (taken as they are)."""

    request_id: str
    prompt: str | list[int]
    sampling: SamplingParams
    """Only what the request itself says: the engine fills in its defaults."""
    priority: int = 0
    client_key: str = ""
    cache_prompt: bool = True
    timeout_s: float | None = None


class Abort(msgspec.Struct, frozen=True, tag=True):
    """The caller is gone. Unknown ids are ignored."""

    request_id: str


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


Command: TypeAlias = Submit | Abort | Shutdown
Event: TypeAlias = Ready | LoadFailed | Accepted | Output | Failed | Heartbeat
Frame: TypeAlias = list[Event]
"""What one step has to say to all streams."""

EXIT_LOAD_FAILED = 3
"""Exit code of a child that has said `LoadFailed`."""
