"""The replies and errors of llama-server, with the fields that Stoker reads; other fields are skipped unread."""

from __future__ import annotations

import msgspec

from stoker.errors import (
    BackendError,
    ContextLengthExceeded,
    InvalidInput,
    ModelNotLoaded,
    Overloaded,
    StokerError,
    UnsupportedParameter,
)

_MAX_ERROR_CHARS = 500


class Progress(msgspec.Struct, frozen=True):
    """Progress of a prompt's computation, in tokens."""

    total: int = 0
    cache: int = 0
    """Tokens found in the cache."""
    processed: int = 0
    time_ms: float = 0.0


class Probability(msgspec.Struct, frozen=True):
    """A token with its probability."""

    id: int
    logprob: float | None = None
    """Log-probability; None = the probability is 0, whose logarithm JSON cannot express."""
    prob: float | None = None
    """Instead of `logprob`: the probability in the distribution after all samplers."""
    token: str = ""
    bytes: list[int] = []


class Position(Probability, frozen=True):
    """The token at one position of an answer, and the most probable tokens there."""

    top_logprobs: list[Probability] = []
    top_probs: list[Probability] = []


class Timings(msgspec.Struct, frozen=True):
    """Timings and token counts of an answer. Counts are in tokens."""

    cache_n: int | None = None
    prompt_n: int | None = None
    prompt_ms: float | None = None
    predicted_ms: float | None = None
    draft_n: int = 0
    draft_n_accepted: int = 0


class Problem(msgspec.Struct, frozen=True):
    """An error, in the body of a reply or in an event stream."""

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
    """The body of a reply with a status other than 200."""

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
    """Kinds of input that the model takes beside text."""

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
    """The text that marks the place of a file in a prompt; old servers do not report it."""


class Piece(msgspec.Struct, frozen=True):
    """One token of a text. A token whose bytes are not valid UTF-8 is reported as a list of bytes."""

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
    """One embedding of the reply to `POST /embedding`; a pooled embedding has one row."""

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
    """One slot of the reply to `GET /slots`."""

    id: int
    is_processing: bool = False
    id_task: int = -1
    n_prompt_tokens: int = 0
    """Tokens that the slot holds, including those of answers."""
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


def reply_error(status: int, body: bytes) -> StokerError:
    """The error for a reply other than 200, from its status and its body."""
    try:
        problem = msgspec.json.decode(body, type=ErrorReply).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = Problem(body[:_MAX_ERROR_CHARS].decode("utf-8", "replace"))
    return problem_error(status, problem)


def problem_error(status: int, problem: Problem) -> StokerError:
    """The error for a problem that llama-server reports, by the problem's type or else by the status."""
    message = f"llama-server: {problem.message[:_MAX_ERROR_CHARS] or f'status {status}'}"
    if problem.type == "exceed_context_size_error":
        sizes = {"num_prompt_tokens": problem.n_prompt_tokens, "context_size": problem.n_ctx}
        return ContextLengthExceeded(message, **sizes)
    if status == 501 or problem.type == "not_supported_error":
        return UnsupportedParameter(message)
    kinds: dict[int, type[StokerError]] = {400: InvalidInput, 429: Overloaded, 503: ModelNotLoaded}
    return kinds.get(status, BackendError)(message)
