"""Messages of questions to an engine, beside generating, and of their answers. A question names its answer's type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, cast, get_args

import msgspec

from stoker.core.media import Media, Span
from stoker.core.slot_state import SlotState
from stoker.engine.blocks_held import RemovedBlocks, StoredBlocks
from stoker.engine.cards import AdapterCard
from stoker.engine.config import AdapterSpec
from stoker.engine.view import EngineView
from stoker.errors import FieldValue, StokerError, error_from_code
from stoker.lazy import lazy_module

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = lazy_module("numpy")  # for servers that are asked for embeddings

A = TypeVar("A", bound="Answer")


class AdapterChoice(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter that a request asks for, by its name, or by its id."""

    name: str | None = None
    adapter_id: int | None = None
    scale: float = 1.0


class SessionState(msgspec.Struct, frozen=True):
    """A session as it is now."""

    name: str
    age_s: float
    expires_in_s: float
    num_requests: int
    num_tokens: int
    """Of it in the KV pool, and preferred there; 0 while a request of it runs."""


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


class TokenCount(Answer, frozen=True, tag=True):
    num_entries: int
    """Tokens, and rows of images and recordings."""


class CountTokens(Question[TokenCount], frozen=True, tag=True):
    """How long a prompt is, with the files in it. Nothing is computed."""

    prompt: str | list[int | str | Span]
    """A text with the markers of files; an engine is given spans instead."""
    media: tuple[Media, ...] = ()
    """Files whose markers are in the prompt."""


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


class SessionList(Answer, frozen=True, tag=True):
    sessions: list[SessionState]


class ListSessions(Question[SessionList], frozen=True, tag=True):
    """The sessions of an owner."""

    owner: str


class SessionEnded(Answer, frozen=True, tag=True):
    was_there: bool


class EndSession(Question[SessionEnded], frozen=True, tag=True):
    """Ends a session and forgets what it left in the KV pool."""

    name: str


class ReasoningEnded(Answer, frozen=True, tag=True):
    num_choices: int
    """Choices whose reasoning ends now."""


class EndReasoning(Question[ReasoningEnded], frozen=True, tag=True):
    """Ends the reasoning that the choices of a reply are writing, as a spent budget does."""

    reply_id: str


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
        return np.frombuffer(self.values, dtype="<f4").reshape(len(self.num_tokens), self.size)

    def relevance(self) -> list[float]:
        """Of ranked inputs: how well each answers the query, between 0 and 1."""
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


class Glimpse(Answer, frozen=True, tag=True):
    engines: list[EngineView]


class Look(Question[Glimpse], frozen=True, tag=True):
    """What the engine does. It writes steps and moments down from the first look on, see `recorder`."""

    since: dict[int, int] = {}
    """By replica, the serial of the newest record that is known already; without it all that is kept is told."""


class PrefixText(Answer, frozen=True, tag=True):
    """A part of what the KV pool holds, as text."""

    begin: int
    """Tokens of the prefix that come before the part."""
    num_tokens: int
    """Tokens of the whole part."""
    num_read: int
    """Tokens of the part that the text has, from the first on."""
    text: str
    """With special tokens written out. U+FFFC stands for what is no token, such as a part of an image."""


class ReadPrefix(Question[PrefixText], frozen=True, tag=True):
    """The text of a node of the prefix tree."""

    node: int
    """Its number in a `PoolView`."""
    replica: int = 0
    """The engine whose pool is meant, in a model with replicas."""
    max_tokens: int = 200


class BlocksHeld(Answer, frozen=True, tag=True):
    """The blocks of KV that an engine holds, or what has changed since the answer before."""

    ledger: str
    """Name of what has counted the answers; another name means another process."""
    serial: int
    """Number of answers with changes so far: one that is not `is_whole` continues the one with `serial - 1`."""
    is_whole: bool
    """`stored` is everything that the engine holds."""
    stored: list[StoredBlocks]
    removed: list[RemovedBlocks]


class LookAtBlocks(Question[BlocksHeld], frozen=True, tag=True):
    """Which blocks of KV any request may reuse, in the pool and in memory behind it.

    A caller that has seen the last answer is told what has changed, any other one everything: an engine should have one
    regular caller.
    """

    ledger: str = ""
    """`BlocksHeld.ledger` of the last answer."""
    since: int = 0
    """`BlocksHeld.serial` of the last answer."""
    wants_tokens: bool = False
    """Stored blocks come with their entries."""


class KVShare(Answer, frozen=True, tag=True):
    """What an engine holds, needs and may hold in its KV pool, in bytes."""

    limit: int
    """No more is held; it moves between `least` and `most`."""
    share: int
    """The limit while nothing is lent or borrowed."""
    least: int
    most: int
    held: int
    """By requests that run, and by finished conversations."""
    needed: int
    """By requests that run, and by those in the queue that may run beside them; 0 = there is no request."""
    is_short: bool
    """Something was evicted or preempted for want of room since the question before."""


class ShareKV(Question[KVShare], frozen=True, tag=True):
    """What the KV pool of an engine that lends parts of it is used for; or how large the pool is from now on."""

    limit: int | None = None
    """Bytes, at most. Finished conversations are evicted and requests preempted until the pool is no larger."""


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


QuickQuestion: TypeAlias = (
    Tokenize
    | CountTokens
    | Detokenize
    | ListSlots
    | EraseSlots
    | SaveSlot
    | RestoreSlot
    | ListSessions
    | EndSession
    | EndReasoning
    | ChangeAdapters
    | Look
    | ReadPrefix
    | LookAtBlocks
    | ShareKV
)
"""What costs no forward pass."""


def as_answer_to(question: Question[A], answer: Answer) -> A:
    """`answer`, which is of the kind that `question` asks for."""
    (kind,) = get_args(vars(type(question))["__orig_bases__"][0])
    assert isinstance(answer, kind), "every question has one kind of answer"
    return cast("A", answer)
