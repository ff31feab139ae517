"""From a model's vocabulary to its tokenizer."""

from stoker.text.vocabulary.tokenizer import VocabularyTokenizer, build_tokenizer, check_tokenizer

__all__ = ["VocabularyTokenizer", "build_tokenizer", "check_tokenizer"]
