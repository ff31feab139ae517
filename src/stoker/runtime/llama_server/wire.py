"""What llama-server says, as far as it is read; everything else is skipped without being decoded."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from stoker.errors import BackendError

T = TypeVar("T")


class Progress(msgspec.Struct, frozen=True):
    """How far it is with a prompt, in tokens."""

    total: int = 0
    cache: int = 0
    """Not computed: they were there."""
    processed: int = 0
    time_ms: float = 0.0


class Probability(msgspec.Struct, frozen=True):
    """One token."""

    id: int
    logprob: float | None = None
    """None: it has no probability at all, and JSON has no infinity."""
    prob: float | None = None
    """Instead of it, of what a token was drawn from."""
    token: str = ""
    bytes: list[int] = []


class Position(Probability, frozen=True):
    """One position of an answer, and the likeliest tokens there."""

    top_logprobs: list[Probability] = []
    top_probs: list[Probability] = []


class Timings(msgspec.Struct, frozen=True):
    """Counts are in tokens."""

    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_ms: float | None = None
    draft_n: int = 0
    draft_n_accepted: int = 0


class Problem(msgspec.Struct, frozen=True):
    """An error, in a body or in a stream."""

    message: str = ""
    type: str = ""
    code: int = 500
    n_prompt_tokens: int = 0
    n_ctx: int = 0


class Completion(msgspec.Struct, frozen=True):
    """One event of an answer."""

    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    stop_type: str = ""
    stopping_word: str = ""
    tokens_predicted: int = 0
    completion_probabilities: list[Position] = []
    prompt_progress: Progress | None = None
    timings: Timings | None = None
    error: Problem | None = None


class ErrorReply(msgspec.Struct, frozen=True):
    """The body of a reply that is not 200."""

    error: Problem


class Meta(msgspec.Struct, frozen=True):
    n_vocab: int | None = None


class ListedModel(msgspec.Struct, frozen=True):
    id: str
    meta: Meta | None = None


class ModelList(msgspec.Struct, frozen=True):
    """`GET /v1/models`."""

    data: list[ListedModel]


class Generation(msgspec.Struct, frozen=True):
    n_ctx: int | None = None


class Modalities(msgspec.Struct, frozen=True):
    """What it takes beside text."""

    vision: bool = False
    audio: bool = False


class Props(msgspec.Struct, frozen=True):
    """`GET /props`."""

    default_generation_settings: Generation = Generation()
    bos_token: str = ""
    eos_token: str = ""
    build_info: str = ""
    modalities: Modalities = Modalities()
    media_marker: str = "<__media__>"
    """What stands in a prompt for a file; older servers do not say it."""


class Piece(msgspec.Struct, frozen=True):
    """One token of a text; those that are no UTF-8 by themselves come as bytes."""

    id: int
    piece: str | list[int] = ""

    @property
    def raw(self) -> bytes:
        return self.piece.encode() if isinstance(self.piece, str) else bytes(self.piece)


class Tokens(msgspec.Struct, frozen=True):
    """`POST /tokenize`."""

    tokens: list[Piece]


class Text(msgspec.Struct, frozen=True):
    """`POST /detokenize`."""

    content: str


class Embedding(msgspec.Struct, frozen=True):
    """One of `POST /embedding`. Pooled, so there is one row."""

    index: int
    embedding: list[list[float]]


class Rank(msgspec.Struct, frozen=True):
    index: int
    relevance_score: float


class Ranks(msgspec.Struct, frozen=True):
    """`POST /rerank`."""

    results: list[Rank]


class Decoded(msgspec.Struct, frozen=True):
    n_decoded: int = 0


class Slot(msgspec.Struct, frozen=True):
    """One of `GET /slots`."""

    id: int
    is_processing: bool = False
    id_task: int = -1
    n_prompt_tokens: int = 0
    """What it holds, answers included."""
    next_token: list[Decoded] | Decoded = Decoded()

    @property
    def num_decoded(self) -> int:
        if isinstance(self.next_token, Decoded):
            return self.next_token.n_decoded
        return sum(token.n_decoded for token in self.next_token[:1])


class ErasedSlot(msgspec.Struct, frozen=True):
    n_erased: int


class SavedSlot(msgspec.Struct, frozen=True):
    n_saved: int
    n_written: int


class RestoredSlot(msgspec.Struct, frozen=True):
    n_restored: int
    n_read: int


def decode(body: bytes, kind: type[T], what: str) -> T:
    """A reply.

    Raises:
        BackendError: it is not what this version of Stoker knows.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BackendError(f"llama-server's {what} cannot be understood: {error}: {body[:200]!r}") from error
