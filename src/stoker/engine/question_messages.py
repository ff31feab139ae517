"""Questions to an engine, other than requests for text, and their answers. Each question type names its answer type."""

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
    np = lazy_module("numpy")  # imported on first use, because only embeddings need it

A = TypeVar("A", bound="Answer")


class AdapterChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A LoRA adapter that a request selects, by name or by id."""

    name: str | None = None
    adapter_id: int | None = None
    scale: float = 1.0


class SessionState(msgspec.Struct, frozen=True):
    """The current state of a session."""

    name: str
    age_s: float
    expires_in_s: float
    num_requests: int
    num_tokens: int
    """Tokens of the session that the KV pool keeps and evicts last; 0 while a request of the session runs."""


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The answer to a question."""

    question_id: str


class Question(msgspec.Struct, Generic[A], frozen=True, tag=True, kw_only=True):
    """A question with an answer of type `A`. While the engine process lives, each gets exactly one answer."""

    question_id: str = ""
    """Id of the question, which its sender sets."""


class Tokenized(Answer, frozen=True, tag=True):
    token_ids: list[int]
    pieces: list[bytes]
    """The text of each token, in bytes; special tokens have their spellings."""


class Tokenize(Question[Tokenized], frozen=True, tag=True):
    """Asks for the tokens of a text."""

    text: str
    wants_bos: bool = True
    """Tokenize the text as a prompt: with a BOS token, if the model wants one and the text does not have its own."""
    parse_special: bool = True
    """Texts of special tokens become those tokens."""


class TokenCount(Answer, frozen=True, tag=True):
    num_entries: int
    """Length of the prompt: its tokens, and the rows (embeddings) of images and recordings."""


class CountTokens(Question[TokenCount], frozen=True, tag=True):
    """Asks for the length of a prompt, including images and recordings. No forward pass is computed."""

    prompt: str | list[int | str | Span]
    """A prompt with the markers of `media`; before an engine gets it, spans replace the markers."""
    media: tuple[Media, ...] = ()
    """Images and recordings, whose markers are in the prompt."""


class Detokenized(Answer, frozen=True, tag=True):
    text: str


class Detokenize(Question[Detokenized], frozen=True, tag=True):
    """Asks for the text of tokens. Special tokens are written with their spellings."""

    token_ids: list[int]


class SlotList(Answer, frozen=True, tag=True):
    slots: list[SlotState]


class ListSlots(Question[SlotList], frozen=True, tag=True):
    """Asks for the content of every slot of the KV pool, between two steps."""


class Erased(Answer, frozen=True, tag=True):
    num_tokens: int


class EraseSlots(Question[Erased], frozen=True, tag=True):
    """Erases the KV of finished conversations in one slot or in all slots."""

    slot: int | None = None
    """None = all slots without a running request, and the RAM tier; the disk tier stays."""


class SessionList(Answer, frozen=True, tag=True):
    sessions: list[SessionState]


class ListSessions(Question[SessionList], frozen=True, tag=True):
    """Asks for the sessions of an owner."""

    owner: str


class SessionEnded(Answer, frozen=True, tag=True):
    was_there: bool


class EndSession(Question[SessionEnded], frozen=True, tag=True):
    """Ends a session and erases its KV in the pool."""

    name: str


class ReasoningEnded(Answer, frozen=True, tag=True):
    num_choices: int
    """Number of choices whose reasoning was ended."""


class EndReasoning(Question[ReasoningEnded], frozen=True, tag=True):
    """Ends the reasoning of a reply's choices, in the way a spent reasoning budget ends it."""

    reply_id: str


class SlotFiled(Answer, frozen=True, tag=True):
    """The result of saving or restoring a slot."""

    num_tokens: int
    num_bytes: int
    """Size of the file."""
    seconds: float


class SaveSlot(Question[SlotFiled], frozen=True, tag=True):
    """Writes the KV that a finished conversation left in a slot to a file."""

    slot: int
    filename: str
    """Name of the file in the engine's `slot_save_path`."""


class RestoreSlot(Question[SlotFiled], frozen=True, tag=True):
    """Fills an idle slot from a file that `SaveSlot` wrote."""

    slot: int
    filename: str
    """Name of the file in the engine's `slot_save_path`."""


class AdapterList(Answer, frozen=True, tag=True):
    adapters: list[AdapterCard]


class ChangeAdapters(Question[AdapterList], frozen=True, tag=True):
    """Changes the loaded LoRA adapters, if any change is given, and asks for the list of those that are loaded then."""

    load: AdapterSpec | None = None
    unload: str | None = None
    """Name of the adapter to unload. Running requests keep it; new requests cannot select it."""
    scales: dict[int, float] | None = None
    """By adapter id, the scale for requests that select no adapters. Adapters without an entry get scale 0."""

    @property
    def is_empty(self) -> bool:
        """The question asks for no change."""
        return (self.load, self.unload, self.scales) == (None, None, None)


class Embedded(Answer, frozen=True, tag=True):
    values: bytes
    """Results of all inputs, one input after the other, as little-endian 4-byte floats."""
    size: int
    """Number of floats per input: the length of an embedding, or 1 for the raw score of a reranking model."""
    num_tokens: list[int]
    """Number of tokens of each input."""

    def rows(self) -> NDArray[np.float32]:
        """The results as an array `(inputs, size)`, in the order of the inputs."""
        return np.frombuffer(self.values, dtype="<f4").reshape(len(self.num_tokens), self.size)

    def relevance(self) -> list[float]:
        """Relevance of each input to the query, 0 to 1: the sigmoid of its score. For answers of reranking models."""
        scores = self.rows()[:, 0].astype(np.float64)
        return (0.5 * (1 + np.tanh(scores / 2))).tolist()


class Embed(Question[Embedded], frozen=True, tag=True):
    """Asks for embeddings, or for scores of a reranking model. It costs forward passes; `Abort` with its id ends it.

    Its inputs are computed in the same steps as running requests, with a bounded share of each step.
    """

    inputs: list[str | list[int]]
    """Texts, or lists of token ids, which are used unchanged."""
    query: str | None = None
    """Query for reranking: each input is scored against it. None = embeddings are computed."""
    dimensions: int | None = None
    """Number of leading values to keep of each embedding, for models trained so that these suffice (Matryoshka)."""
    norm: int = 2
    """Norm by which embeddings are scaled, see `normalised`; -1 = no scaling."""
    truncates: bool = False
    """Truncate inputs that are too long, instead of refusing them."""
    priority: int = 0
    client_key: str = ""
    timeout_s: float | None = None
    parse_special: bool = True
    """Texts of special tokens in the inputs become those tokens."""
    parameter: str = "input"
    """The client's name of the parameter with the inputs, for error messages."""
    adapters: list[AdapterChoice] | None = None
    """Adapters as in `Submit`. Embeddings are computed without adapters, so a selection with effect is refused."""


class Glimpse(Answer, frozen=True, tag=True):
    engines: list[EngineView]


class Look(Question[Glimpse], frozen=True, tag=True):
    """Asks what the engine is doing. It records its steps and moments from the first `Look` on; see `recorder`."""

    since: dict[int, int] = {}
    """By replica, the serial of the newest record that the caller has; without an entry it gets all kept records."""


class PrefixText(Answer, frozen=True, tag=True):
    """The text of one node of the KV pool's prefix tree."""

    begin: int
    """Number of tokens of the prefix that come before the node."""
    num_tokens: int
    """Number of tokens of the node."""
    num_read: int
    """Number of the node's tokens, from its first one, that `text` contains."""
    text: str
    """The text, with special tokens written out. U+FFFC stands for an entry that is no token, such as an image row."""


class ReadPrefix(Question[PrefixText], frozen=True, tag=True):
    """Asks for the text of a node of the prefix tree."""

    node: int
    """Number of the node in a `PoolView`."""
    replica: int = 0
    """Number of the engine whose KV pool is read, for a model with several engines (replicas)."""
    max_tokens: int = 200


class BlocksHeld(Answer, frozen=True, tag=True):
    """The blocks of KV that an engine holds, or the changes since the previous answer."""

    ledger: str
    """Name of the engine's `BlockLedger`; another name means another engine process."""
    serial: int
    """Number of answers with changes so far. Changes (`is_whole` is False) continue the answer with `serial - 1`."""
    is_whole: bool
    """`stored` has all blocks that the engine holds, not only changes."""
    stored: list[StoredBlocks]
    removed: list[RemovedBlocks]


class LookAtBlocks(Question[BlocksHeld], frozen=True, tag=True):
    """Asks for the blocks of KV that any request may reuse, in the pool and in the RAM tier.

    A caller that has the last answer gets the changes since, any other caller gets all blocks. An engine should
    therefore have one regular caller.
    """

    ledger: str = ""
    """`BlocksHeld.ledger` of the last answer."""
    since: int = 0
    """`BlocksHeld.serial` of the last answer."""
    wants_tokens: bool = False
    """Return the entries (token ids) of stored blocks, too."""


class KVShare(Answer, frozen=True, tag=True):
    """Use and limits of an engine's KV pool, in bytes."""

    limit: int
    """Current maximum size of the pool; it moves between `least` and `most`."""
    share: int
    """Maximum size of the pool while nothing is lent or borrowed."""
    least: int
    most: int
    held: int
    """KV held by running requests and finished conversations."""
    needed: int
    """KV needed by running requests and by queued ones that may run at the same time; 0 = there is no request."""
    is_short: bool
    """KV was evicted, or a request preempted, for lack of room since the previous `ShareKV`."""


class ShareKV(Question[KVShare], frozen=True, tag=True):
    """Asks how the KV pool is used, of an engine that lends or borrows KV, after setting the pool's limit if given."""

    limit: int | None = None
    """New maximum size in bytes. Conversations are evicted and requests preempted until the pool fits."""


class Unanswered(Answer, frozen=True, tag=True):
    """The error answer to a question that was refused or failed."""

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
"""Questions that cost no forward pass."""


def as_answer_to(question: Question[A], answer: Answer) -> A:
    """Returns `answer` with the type that `question` asks for."""
    (kind,) = get_args(vars(type(question))["__orig_bases__"][0])
    assert isinstance(answer, kind), "every question has one kind of answer"
    return cast("A", answer)
