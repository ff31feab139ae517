"""The messages between an engine and what uses it, in one process or across two.

Commands go in, events come out. Events are sent in frames: one list for all streams per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, cast, get_args

import msgspec

from stoker.core.media import Media
from stoker.core.outline import Outline
from stoker.core.params import SamplingParams
from stoker.core.slot_state import SlotState
from stoker.engine.cards import AdapterCard, ModelCard
from stoker.engine.config import AdapterSpec, EngineConfig
from stoker.engine.stats import EngineStats
from stoker.errors import FieldValue, StokerError, error_from_code

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

A = TypeVar("A", bound="Answer")

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
    is_text: bool = True
    """False: `chosen` adds nothing to the answer's text, as a control token, or one that only ends the answer."""


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
    """Prompt tokens whose KV was really reused."""
    reasoning_tokens: int = 0
    """Completion tokens of the reasoning, its markers included."""


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


class AdapterChoice(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that a request asks for, by its name, or by its id."""

    name: str | None = None
    adapter_id: int | None = None
    scale: float = 1.0


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
    adapters: list[AdapterChoice] | None = None
    """None = those that apply by themselves."""
    outline: Outline | None = None
    """The parts of the answer and what constrains them; None = plain text."""
    media: tuple[Media, ...] = ()
    """Files that stand where the prompt, which is a text then, has their markers."""


class Abort(msgspec.Struct, frozen=True, tag=True):
    """The caller is gone. Unknown ids are ignored."""

    request_id: str


class Pause(msgspec.Struct, frozen=True, tag=True):
    """Its reader is behind: nothing of it is computed until `Resume`. Unknown ids are ignored, there as well."""

    request_id: str


class Resume(msgspec.Struct, frozen=True, tag=True):
    """Its reader has caught up."""

    request_id: str


class Answer(msgspec.Struct, frozen=True, tag=True):
    """What a question is answered with."""

    question_id: str


class Question(msgspec.Struct, Generic[A], frozen=True, tag=True, kw_only=True):
    """Data that asks for one `A`. Every question that is sent gets exactly one answer, as long as the process lives."""

    question_id: str = ""
    """Given by what sends the question."""


class Tokenized(Answer, frozen=True, tag=True):
    token_ids: list[int]
    pieces: list[bytes]
    """The text of each token; special tokens are written out."""


class Tokenize(Question[Tokenized], frozen=True, tag=True):
    """The tokens of a text."""

    text: str
    wants_bos: bool = True
    """As a prompt: BOS in front, if the model wants one and the text does not bring its own."""
    parse_special: bool = True
    """The text of a special token becomes that token."""


class Detokenized(Answer, frozen=True, tag=True):
    text: str


class Detokenize(Question[Detokenized], frozen=True, tag=True):
    """The text of some tokens, special ones written out."""

    token_ids: list[int]


class SlotList(Answer, frozen=True, tag=True):
    slots: list[SlotState]


class ListSlots(Question[SlotList], frozen=True, tag=True):
    """What every slot of the KV pool holds, between two steps."""


class Erased(Answer, frozen=True, tag=True):
    num_tokens: int


class EraseSlots(Question[Erased], frozen=True, tag=True):
    """Forgets what finished conversations left in one slot, or in all."""

    slot: int | None = None
    """None = all in which no request runs, and what is in memory behind the pool; what is on disk stays."""


class SlotFiled(Answer, frozen=True, tag=True):
    """A slot was saved or restored."""

    num_tokens: int
    num_bytes: int
    """Of the file."""
    seconds: float


class SaveSlot(Question[SlotFiled], frozen=True, tag=True):
    """Writes what a finished conversation left in a slot to a file."""

    slot: int
    filename: str
    """Inside the engine's `slot_save_path`."""


class RestoreSlot(Question[SlotFiled], frozen=True, tag=True):
    """Fills an idle slot with what `SaveSlot` has written."""

    slot: int
    filename: str
    """Inside the engine's `slot_save_path`."""


class AdapterList(Answer, frozen=True, tag=True):
    adapters: list[AdapterCard]


class ChangeAdapters(Question[AdapterList], frozen=True, tag=True):
    """The adapters that are loaded, after all changes that the question asks for, if any."""

    load: AdapterSpec | None = None
    unload: str | None = None
    """By name. Requests that compute with it go on, new ones do not find it."""
    scales: dict[int, float] | None = None
    """By id: for requests that choose no adapters. Those that are missing get 0."""

    @property
    def is_empty(self) -> bool:
        """The question asks for no change."""
        return (self.load, self.unload, self.scales) == (None, None, None)


class Embedded(Answer, frozen=True, tag=True):
    values: bytes
    """Numbers of 4 bytes, little-endian: those of the first input, those of the second, …"""
    size: int
    """Numbers of one input: an embedding, or one score, as the model's classifier gives it."""
    num_tokens: list[int]
    """Of each input."""

    def rows(self) -> NDArray[np.float32]:
        """`(inputs, size)`, in the order of the inputs."""
        import numpy as np  # here: a server without embeddings does without it

        return np.frombuffer(self.values, dtype="<f4").reshape(len(self.num_tokens), self.size)

    def relevance(self) -> list[float]:
        """Of ranked inputs: how well each answers the query, between 0 and 1."""
        import numpy as np

        scores = self.rows()[:, 0].astype(np.float64)
        return (0.5 * (1 + np.tanh(scores / 2))).tolist()


class Embed(Question[Embedded], frozen=True, tag=True):
    """Embeddings, or ranks: a question that costs forward passes. `Abort` with its id takes it back.

    The inputs are computed beside the streams, with a bounded share of each step.
    """

    inputs: list[str | list[int]]
    """Texts, or token ids that are taken as they are."""
    query: str | None = None
    """Given: how well each input answers it is wanted, instead of embeddings."""
    dimensions: int | None = None
    """Only the first numbers of each embedding; of a model that was trained for that, they mean something."""
    norm: int = 2
    """To which norm embeddings are scaled; -1 = they are not."""
    truncates: bool = False
    """An input that is too long is cut instead of refused."""
    priority: int = 0
    client_key: str = ""
    timeout_s: float | None = None
    parse_special: bool = True
    """The text of a special token in an input is that token."""
    parameter: str = "input"
    """What the caller called the inputs, for errors."""
    adapters: list[AdapterChoice] | None = None
    """As of `Submit`. Embeddings are computed without any, so all but an empty list may be refused."""


class Unanswered(Answer, frozen=True, tag=True):
    """The question was refused."""

    code: str
    message: str
    fields: dict[str, FieldValue]

    @classmethod
    def of(cls, question_id: str, error: StokerError) -> Unanswered:
        return cls(question_id, error.code, error.message, error.fields)

    def error(self) -> StokerError:
        return error_from_code(self.code, self.message, self.fields)


QuickQuestion: TypeAlias = Tokenize | Detokenize | ListSlots | EraseSlots | SaveSlot | RestoreSlot | ChangeAdapters
"""What costs no forward pass."""


def as_answer_to(question: Question[A], answer: Answer) -> A:
    """`answer`, which is of the kind that `question` asks for."""
    (kind,) = get_args(vars(type(question))["__orig_bases__"][0])
    assert isinstance(answer, kind), "every question has one kind of answer"
    return cast("A", answer)


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


AnswerEvent: TypeAlias = Tokenized | Detokenized | SlotList | Erased | SlotFiled | AdapterList | Embedded | Unanswered
Command: TypeAlias = Submit | Embed | Abort | Pause | Resume | QuickQuestion | Shutdown
Event: TypeAlias = Loading | Ready | LoadFailed | Accepted | Output | Failed | AnswerEvent | EngineStats
Frame: TypeAlias = list[Event]
"""What one step has to say to all streams."""

EXIT_LOAD_FAILED = 3
"""Exit code of a child that has said `LoadFailed`."""
