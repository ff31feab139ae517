"""The messages between an engine and what uses it, in one process or across two.

Commands go in, events come out. Events are sent in frames: one list for all streams per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

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

if TYPE_CHECKING:
    pass

Prompt: TypeAlias = str | Sequence[int | str]
"""Text, token ids, or both in turn."""

PlacedPrompt: TypeAlias = str | Sequence[int | str | Span]
"""A prompt, also with rows where its images and recordings are."""


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
    """One token of the prompt. Its log-probability is None for the first one, and if none was asked for."""

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
    """A JSON line on a child's stdin, before its `Launch`: this model is probably what it will load."""

    model_path: str


class Launch(msgspec.Struct, frozen=True, tag=True):
    """The last JSON line on a child's stdin: which engine to build, and the two sockets of the parent to connect to."""

    config: EngineConfig
    commands: str
    """Endpoint from which the child pulls one command per message."""
    events: str
    """Endpoint to which the child pushes frames."""
    heartbeat_every_s: float = 1.0
    environment: dict[str, str] = {}
    """What has changed in the parent's since the child was started."""


class SessionUse(msgspec.Struct, frozen=True):
    """A conversation that a client has given a name."""

    name: str
    """Different from those of all other owners."""
    owner: str
    ttl_s: float
    """It ends so long after its last request."""


class Submit(msgspec.Struct, frozen=True, tag=True):
    """A new request. `prompt` is text (tokenized by the engine), token ids (taken as they are), or both in turn; an
    engine is given spans in it where `media` had their markers.
    """

    request_id: str
    prompt: PlacedPrompt
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
    adapters: list[AdapterChoice] | None = None
    """None = those that apply by themselves."""
    outline: Outline | None = None
    """The parts of the answer and what constrains them; None = plain text."""
    reports_progress: bool = False
    """Outputs without tokens say how far the prompt is computed."""
    traces: bool = False
    """Outputs say where their tokens came from."""
    media: tuple[Media, ...] = ()
    """Files that stand where the prompt, which is a text then, has their markers."""
    session: SessionUse | None = None
    """The conversation that the request goes on with, if it has a name."""
    wants_blocks: bool = False
    """`Accepted.blocks` is wanted."""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """The caller is gone. Unknown ids are ignored."""

    request_id: str


class Pause(msgspec.Struct, frozen=True, tag=True):
    """Its reader is behind: nothing of it is computed until `Resume`. Unknown ids are ignored, there as well."""

    request_id: str


class Resume(msgspec.Struct, frozen=True, tag=True):
    """Its reader has caught up."""

    request_id: str


class RowsWanted(msgspec.Struct, frozen=True, tag=True):
    """A request cannot go on before the engine is given the rows of one of its spans."""

    request_id: str
    key: bytes


class GiveRows(msgspec.Struct, frozen=True, tag=True):
    """What an engine has asked for; rows that no request needs any more are dropped."""

    key: bytes
    values: bytes
    """Numbers of 4 bytes, little-endian, row after row."""


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Finish nothing, free everything, exit."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded and warmed."""

    card: ModelCard


class Loading(msgspec.Struct, frozen=True, tag=True):
    """How far the weights are on their way into memory; for weights that are there already nothing is said."""

    part: float
    """Range 0 … 1."""


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
    relaxed: tuple[str, ...] = ()
    """What of a schema is not enforced, in words."""
    blocks: list[int] = []
    """Numbers of the prompt's whole blocks (see `blocks_held`), if they were asked for and other requests may reuse
    them."""


class Timing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How long a request was computed, in seconds, by the clock of who computed it."""

    prefill_s: float
    """From the first step that computed a part of it to its first token."""
    decode_s: float
    """From there to the last one."""
    num_drafted: int = 0
    """Tokens that were guessed ahead,"""
    num_accepted: int = 0
    """and those of them that came out."""
    queue_s: float = 0.0
    """From the arrival to the first step that computed a part of it."""


class Output(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
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
    timing: Timing | None = None
    """On the last output, if it is known."""
    marks: list[tuple[int, str]] = []
    """Where in `text` a token of `Outline.markers` stood, and its spelling, which is no part of `text`."""
    progress: Progress | None = None
    """Given: nothing was added, the prompt is still being computed."""
    trace: Trace | None = None
    """Where its tokens came from, if the request asked for that."""


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
"""What one step has to say to all streams."""

EXIT_LOAD_FAILED = 3
"""Exit code of a child that has said `LoadFailed`."""
