"""A model's own tokenizer in libllama: text to token ids, token ids to bytes. It adds no tokens by itself."""

from __future__ import annotations

from ctypes import c_char, c_int32

from stoker.backends.llama.native import library
from stoker.backends.llama.weights import Weights
from stoker.errors import InvalidInput, ModelNotLoaded

_MAX_TEXT_BYTES = 2**31 - 1024


class LlamaTokenizer:
    """The tokenizer of one model. Satisfies `Tokenizer`. Thread-safe, until its backend is closed.

    A SentencePiece model may expect a space in front of the text; its tokens then include that space.
    """

    def __init__(self, weights: Weights) -> None:
        lib = library()
        vocab = weights.vocab
        self._weights: Weights | None = weights
        self._vocab_size: int = lib.llama_vocab_n_tokens(vocab)
        self._bos_token_id = _token_or_none(lib.llama_vocab_bos(vocab))
        self._eos_token_id = _token_or_none(lib.llama_vocab_eos(vocab))
        self._adds_bos: bool = lib.llama_vocab_get_add_bos(vocab)
        # Filled as tokens are first seen; a race between threads writes the same bytes twice.
        self._bytes: dict[bool, list[bytes | None]] = {
            render_special: [None] * self._vocab_size for render_special in (False, True)
        }

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def bos_token_id(self) -> int | None:
        return self._bos_token_id

    @property
    def eos_token_id(self) -> int | None:
        return self._eos_token_id

    @property
    def adds_bos(self) -> bool:
        return self._adds_bos

    def eog_token_ids(self) -> frozenset[int]:
        """All end-of-generation tokens of the model."""
        vocab, is_eog = self._open_weights().vocab, library().llama_vocab_is_eog
        return frozenset(token_id for token_id in range(self._vocab_size) if is_eog(vocab, token_id))

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        """Token ids of `text`, NUL characters included; no tokens are added at the beginning or end.

        Raises:
            InvalidInput: the text has a lone surrogate, which UTF-8 cannot encode, or is longer than 2 GiB.
            ModelNotLoaded: the backend was closed.
        """
        raw = _utf8(text)
        weights, tokenize = self._open_weights(), library().llama_tokenize
        # A token is at least one byte, but a SentencePiece model may put a space before each fragment.
        capacity = len(raw) + 16
        token_ids = (c_int32 * capacity)()
        count = tokenize(weights.vocab, raw, len(raw), token_ids, capacity, False, parse_special)
        if count < 0:
            token_ids = (c_int32 * -count)()
            count = tokenize(weights.vocab, raw, len(raw), token_ids, -count, False, parse_special)
        assert count >= 0, "libllama asked for this much room"
        return token_ids[:count]

    def fewest_tokens(self, text: str) -> int:
        """See `Tokenizer.fewest_tokens`. Always 0, because no better bound is known."""
        return 0

    def token_bytes(self, token_id: int, *, render_special: bool = False) -> bytes:
        """The bytes that this token adds to a text; control tokens add none unless `render_special`.

        Raises:
            InvalidInput: the id is outside the vocabulary.
            ModelNotLoaded: the backend was closed before this token was first asked for.
        """
        if not 0 <= token_id < self._vocab_size:
            raise InvalidInput(f"token id {token_id} is outside the vocabulary of {self._vocab_size}")
        table = self._bytes[render_special]
        piece = table[token_id]
        if piece is None:
            piece = table[token_id] = _piece(self._open_weights(), token_id, render_special)
        return piece

    def close(self) -> None:
        """Releases the reference to the weights, so that they can be freed."""
        self._weights = None

    def _open_weights(self) -> Weights:
        # The caller's reference keeps the vocabulary alive while another thread closes.
        weights = self._weights
        if weights is None:
            raise ModelNotLoaded("The model was closed.")
        return weights


def _utf8(text: str) -> bytes:
    try:
        raw = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"The text is not valid Unicode: a lone surrogate (U+{ord(text[error.start]):04X}) at character "
            f"{error.start}.",
            position=error.start,
        ) from error
    if len(raw) > _MAX_TEXT_BYTES:
        raise InvalidInput(f"The text has {len(raw)} bytes: more than a tokenizer takes.")
    return raw


def _piece(weights: Weights, token_id: int, render_special: bool) -> bytes:
    token_to_piece = library().llama_token_to_piece
    buffer = (c_char * 64)()
    size = token_to_piece(weights.vocab, token_id, buffer, len(buffer), 0, render_special)
    if size < 0:
        buffer = (c_char * -size)()
        size = token_to_piece(weights.vocab, token_id, buffer, len(buffer), 0, render_special)
    assert size >= 0, "libllama asked for this much room"
    return buffer.raw[:size]


def _token_or_none(token_id: int) -> int | None:
    return None if token_id < 0 else token_id
