"""Makes a tokenizer from a model's vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.lazy import lazy_names

if TYPE_CHECKING:
    from stoker.text.vocabulary.tokenizer import VocabularyTokenizer, build_tokenizer

__all__ = ["VocabularyTokenizer", "build_tokenizer"]

_HOME = "stoker.text.vocabulary.tokenizer"
__getattr__ = lazy_names(__name__, dict.fromkeys(__all__, _HOME))
"""A process that only measures a model reads the names of rules, and makes no tokenizer."""
