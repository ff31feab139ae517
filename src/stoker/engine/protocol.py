"""The messages between an engine and its client, in one process or between two.

The client sends commands, and the engine sends events. A frame is the list of all events of one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from stoker.core.media import Media, Span
from stoker.core.outline import Outline
from stoker.core.params import SamplingParams
from stoker.engine.cards import ModelCard
from stoker.engine.config import EngineConfig
from stoker.engine.question_messages import (
    AdapterChoice,
    AdapterList,
    BlocksHeld,
    Detokenized,
    Embed,
    Embedded,
    Erased,
    Glimpse,
    KVShare,
    PrefixText,
    QuickQuestion,
    ReasoningEnded,
    SessionEnded,
    SessionList,
    SlotFiled,
    SlotList,
    TokenCount,
    Tokenized,
    Unanswered,
)
from stoker.engine.stats import EngineStats
from stoker.engine.traces import Trace
from stoker.engine.view import Progress
from stoker.errors import FieldValue, StokerError, error_from_code

Prompt: TypeAlias = str | Sequence[int | str]
"""A prompt: text, or a list of token ids and texts."""

PlacedPrompt: TypeAlias = str | Sequence[int | str | Span]
"""A prompt in which spans of rows (embeddings) stand for images and recordings."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One token with its log-probability (natural logarithm, before all sampling stages)."""

    token_id: int
    logprob: float
    token: bytes


class PositionLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """The chosen token at one position, and the most likely alternatives (most likely first)."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...]
    is_text: bool = True
    """False = `chosen` adds nothing to the text of the answer, such as a control token or an end-of-generation
    token."""


class PromptToken(msgspec.Struct, frozen=True, array_like=True):
    """One token of the prompt. `logprob` is None for the first token, and if no log-probabilities are requested."""

    token_id: int
    token: bytes
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()


class Usage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Exact token counts of one request. An end-of-generation token counts as a completion token."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens that were not computed, because their KV was cached."""
    reasoning_tokens: int = 0
    """Completion tokens of the reasoning, including its markers."""
    audio_tokens: int = 0
    """Prompt tokens that are embeddings of audio."""
    image_tokens: int = 0
    """Prompt tokens that are embeddings of images."""


class Expect(msgspec.Struct, frozen=True, tag=True):
    """A JSON line on a child's stdin before its `Launch`: names the model that the child will probably load."""

    model_path: str


class Launch(msgspec.Struct, frozen=True, tag=True):
    """The last JSON line on a child's stdin: the engine to build, and the parent's two sockets to connect to."""

    config: EngineConfig
    commands: str
    """Endpoint from which the child pulls one command per message."""
    events: str
    """Endpoint to which the child pushes frames."""
    heartbeat_every_s: float = 1.0
    environment: dict[str, str] = {}
    """Environment variables of the parent that have changed since the child was started."""


class SessionUse(msgspec.Struct, frozen=True):
    """The named session that a request belongs to."""

    name: str
    """Name of the session, unique among all owners."""
    owner: str
    ttl_s: float
    """Seconds after its last request at which the session ends."""


class Submit(msgspec.Struct, frozen=True, tag=True):
    """A new request. `prompt` is text (which the engine tokenizes), token ids (used unchanged), or a list of both.
    Before an engine gets it, spans replace the markers of `media` in the prompt.
    """

    request_id: str
    prompt: PlacedPrompt
    sampling: SamplingParams
    """Parameters that the request itself sets; the engine fills in its defaults."""
    priority: int = 0
    client_key: str = ""
    cache_prompt: bool = True
    timeout_s: float | None = None
    group: str = ""
    """Group of requests with the same prompt, which the engine computes once."""
    echo: bool = False
    """The first output has the prompt's tokens, with log-probabilities if `sampling.logprobs` is given."""
    parse_special: bool = True
    """Texts of special tokens in the prompt become those tokens; False = they remain plain text."""
    text_bias: dict[str, float] = {}
    """Logit bias by text: it applies to every token of the text."""
    adapters: list[AdapterChoice] | None = None
    """LoRA adapters of the request; None = every loaded adapter with its default scale."""
    outline: Outline | None = None
    """The parts of the answer and what constrains them; None = plain text."""
    reports_progress: bool = False
    """Progress of prefill is reported, in outputs without tokens."""
    traces: bool = False
    """Outputs carry traces: the step of each token, and whether it was drafted."""
    media: tuple[Media, ...] = ()
    """Images and recordings, whose markers are in the prompt; the prompt is then a text."""
    session: SessionUse | None = None
    """Named session that the request begins or continues; None = no session."""
    wants_blocks: bool = False
    """Fill in `Accepted.blocks`."""
    num_cached: int = 0
    """Prompt tokens that are probably cached, in the estimated tokens of routing. The engine itself ignores it."""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """Ends a request whose client has left. Unknown ids are ignored."""

    request_id: str


class Pause(msgspec.Struct, frozen=True, tag=True):
    """Pauses a request whose reader is too slow: nothing of it is computed until `Resume`. Unknown ids are ignored."""

    request_id: str


class Resume(msgspec.Struct, frozen=True, tag=True):
    """Continues a paused request whose reader has caught up. Unknown ids are ignored."""

    request_id: str


class RowsWanted(msgspec.Struct, frozen=True, tag=True):
    """The engine needs the rows (embeddings) of one span of a request, which waits for them."""

    request_id: str
    key: bytes


class GiveRows(msgspec.Struct, frozen=True, tag=True):
    """Rows of a span that the engine requested with `RowsWanted`. It drops rows that no request needs any more."""

    key: bytes
    values: bytes
    """The rows one after the other, as little-endian 4-byte floats."""


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Ends the engine's process: unfinished requests are not completed, and everything is freed."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded and warmed up; the engine takes requests."""

    card: ModelCard


class Loading(msgspec.Struct, frozen=True, tag=True):
    """Progress of reading the weights into memory. It is not sent if they are in memory already."""

    part: float
    """Fraction of the weights that is loaded, 0 to 1."""


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
    """The request passed every check and is queued, so the response to the client may begin."""

    request_id: str
    prompt_tokens: int
    relaxed: tuple[str, ...] = ()
    """Descriptions of the parts of a JSON schema that are not enforced."""
    blocks: list[int] = []
    """Numbers of the prompt's whole KV blocks (see `blocks_held`), if the request asked for them and other requests may
    reuse them."""


class Timing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Durations of one request in seconds, by the clock of the engine that computed it, and counts of its drafts."""

    prefill_s: float
    """Time from the first step that computed a part of the request to its first token."""
    decode_s: float
    """Time from the first token to the last one."""
    num_drafted: int = 0
    """Number of tokens drafted by speculative decoding."""
    num_accepted: int = 0
    """Number of drafted tokens that became part of the answer."""
    queue_s: float = 0.0
    """Time from the arrival of the request to the first step that computed a part of it."""


class Output(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """What one step added to a request. The last output has a `finish_reason` (a `FinishReason` value).

    `text` may be empty (half a character, a held-back stop string); the answer is the concatenation of the texts of
    all outputs. `token_ids` are the sampled tokens, including an end-of-generation token.
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
    """The prompt's tokens, on the first output of a request with `Submit.echo`."""
    timing: Timing | None = None
    """Durations and draft counts, on the last output of a request; None if they are not known."""
    marks: list[tuple[int, str]] = []
    """Tokens of `Outline.markers`: the offset in `text` of each, and its spelling, which `text` does not contain."""
    progress: Progress | None = None
    """Progress of prefill; if given, the output adds no tokens."""
    trace: Trace | None = None
    """How the tokens of this output were computed; None = the request did not ask for traces."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A request ended with an error, before or after its first token."""

    request_id: str
    code: str
    message: str
    fields: dict[str, FieldValue]

    @classmethod
    def of(cls, request_id: str, error: StokerError) -> Failed:
        return cls(request_id, error.code, error.message, error.fields)

    def error(self) -> StokerError:
        return error_from_code(self.code, self.message, self.fields)


AnswerEvent: TypeAlias = (
    Tokenized
    | TokenCount
    | Detokenized
    | SlotList
    | Erased
    | SlotFiled
    | SessionList
    | SessionEnded
    | ReasoningEnded
    | AdapterList
    | Embedded
    | Glimpse
    | PrefixText
    | BlocksHeld
    | KVShare
    | Unanswered
)
Command: TypeAlias = Submit | Embed | Abort | Pause | Resume | GiveRows | QuickQuestion | Shutdown
Event: TypeAlias = Loading | Ready | LoadFailed | Accepted | Output | Failed | RowsWanted | AnswerEvent | EngineStats
Frame: TypeAlias = list[Event]
"""The events of one step, for all requests."""

EXIT_LOAD_FAILED = 3
"""Exit code of a child that has sent `LoadFailed`."""
