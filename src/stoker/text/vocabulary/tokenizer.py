"""Builds a tokenizer from the vocabulary of a GGUF file. It gives the same tokens as libllama, without libllama."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from math import ceil

from stoker.core.vocabulary import Vocabulary
from stoker.errors import InvalidInput
from stoker.text.vocabulary.byte_pairs import BytePairEncoder
from stoker.text.vocabulary.fragments import SPACES, FragmentEncoder, FragmentSplitter, ParsedToken
from stoker.text.vocabulary.pieces import token_piece
from stoker.text.vocabulary.scored_pairs import ScoredPairEncoder
from stoker.text.vocabulary.special_tokens import Attribute, SpecialTokens, find_special_tokens
from stoker.text.vocabulary.unigram import UnigramEncoder
from stoker.text.vocabulary.word_pieces import WordPieceEncoder
from stoker.text.vocabulary.word_rules import WordRule, rule_for

logger = logging.getLogger(__name__)


class VocabularyTokenizer:
    """The tokenizer of one vocabulary, made by `build_tokenizer`. Satisfies `stoker.text.tokenizer.Tokenizer`.

    Safe to use from several threads.
    """

    def __init__(self, vocabulary: Vocabulary, special: SpecialTokens, encoder: FragmentEncoder, rule: WordRule | None):
        self._tokens = vocabulary.tokens
        self._special = special
        self._encoder = encoder
        self._is_byte_level = rule is not None and rule.is_byte_level
        self._with_special = self._splitter(special.parsed_ids)
        # User-defined tokens are ordinary words, so they are recognized even without `parse_special`.
        self._without_special = self._splitter(
            token_id for token_id in special.parsed_ids if not special.attributes[token_id] & Attribute.HIDDEN
        )
        self._strips_spaces = any(
            special.attributes[token_id] & (Attribute.STRIPS_LEFT | Attribute.STRIPS_RIGHT)
            for token_id in special.parsed_ids
        )
        self._longest = max(map(len, self._tokens), default=1) or 1
        """Length of the longest token, in characters."""
        self._pieces: list[bytes | None] = [None] * len(self._tokens)

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    @property
    def bos_token_id(self) -> int | None:
        return self._special.ids.get("bos")

    @property
    def eos_token_id(self) -> int | None:
        return self._special.ids.get("eos")

    @property
    def adds_bos(self) -> bool:
        return self._special.adds_bos

    @property
    def special(self) -> SpecialTokens:
        """The special tokens: ids by role (such as `fim_pre`), and which of them are added to every prompt."""
        return self._special

    def eog_token_ids(self) -> frozenset[int]:
        """All end-of-generation tokens."""
        return self._special.eog_ids

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        """The token ids of `text`, including NUL characters, without BOS or EOS.

        Raises:
            InvalidInput: the text has a lone surrogate, which cannot be encoded as UTF-8.
        """
        _check_unicode(text)
        splitter = self._with_special if parse_special else self._without_special
        return self._encoder.encode(splitter.split(text))

    def fewest_tokens(self, text: str) -> int:
        """A lower bound, as if each token were the longest of the vocabulary; 0 if encoding may drop any character."""
        lost = self._encoder.lost_characters
        if lost is None:
            return 0
        if self._strips_spaces:
            lost = {*lost, *SPACES}
        return ceil((len(text) - sum(map(text.count, lost))) / self._longest)

    def token_bytes(self, token_id: int, *, render_special: bool = False) -> bytes:
        """The bytes that this token adds to a text; none for control tokens, unless `render_special` is set.

        Raises:
            InvalidInput: the id is outside the vocabulary.
        """
        if not 0 <= token_id < len(self._tokens):
            raise InvalidInput(f"token id {token_id} is outside the vocabulary of {len(self._tokens)}")
        attribute = self._special.attributes[token_id]
        if not render_special and attribute & Attribute.HIDDEN:
            return b""
        piece = self._pieces[token_id]
        if piece is None:
            text = self._tokens[token_id]
            piece = self._pieces[token_id] = token_piece(text, attribute, is_byte_level=self._is_byte_level)
        return piece

    def _splitter(self, token_ids: Iterable[int]) -> FragmentSplitter:
        attributes = self._special.attributes
        return FragmentSplitter(
            ParsedToken(
                token_id,
                self._tokens[token_id],
                strips_left=bool(attributes[token_id] & Attribute.STRIPS_LEFT),
                strips_right=bool(attributes[token_id] & Attribute.STRIPS_RIGHT),
            )
            for token_id in token_ids
        )


def build_tokenizer(vocabulary: Vocabulary) -> VocabularyTokenizer:
    """The tokenizer that a model's file describes.

    Raises:
        ModelUnsupported: the kind of tokenizer or its pre-tokenizer is not supported; the message names it.
        ModelFileInvalid: the vocabulary contradicts itself.
    """
    rule = _word_rule(vocabulary)
    token_ids = {text: token_id for token_id, text in enumerate(vocabulary.tokens)}
    special = find_special_tokens(vocabulary, token_ids, rule)
    unknown_id = special.ids.get("unk")
    encoder: FragmentEncoder
    if rule is not None:
        encoder = BytePairEncoder(vocabulary, token_ids, rule)
    elif vocabulary.model == "llama":
        prefix = vocabulary.add_space_prefix
        encoder = ScoredPairEncoder(
            vocabulary, token_ids, unknown_id=unknown_id, adds_space_prefix=prefix is None or prefix
        )
    elif vocabulary.model == "t5":
        encoder = UnigramEncoder(vocabulary, unknown_id=unknown_id)
    else:
        lowercase = vocabulary.lowercase is None or vocabulary.lowercase
        strips = lowercase if vocabulary.strip_accents is None else vocabulary.strip_accents
        encoder = WordPieceEncoder(token_ids, unknown_id=unknown_id, lowercase=lowercase, strip_accents=strips)
    return VocabularyTokenizer(vocabulary, special, encoder, rule)


def _word_rule(vocabulary: Vocabulary) -> WordRule | None:
    rule = rule_for(vocabulary.model, vocabulary.pre_tokenizer)
    if vocabulary.model == "gpt2" and not vocabulary.pre_tokenizer:
        logger.warning(
            "this old file does not say how its model cuts text into words, and answers will be worse for it: "
            "get the model converted anew"
        )
    return rule


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"The text is not valid Unicode: a lone surrogate (U+{ord(text[error.start]):04X}) at character "
            f"{error.start}.",
            position=error.start,
        ) from error
