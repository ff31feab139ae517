"""A tokenizer that is made from the vocabulary in a model's file, without libllama."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.lazy import lazy_names

if TYPE_CHECKING:
    from stoker.text.vocabulary.tokenizer import VocabularyTokenizer, build_tokenizer

__all__ = ["VocabularyTokenizer", "build_tokenizer"]

_HOME = "stoker.text.vocabulary.tokenizer"
__getattr__ = lazy_names(__name__, dict.fromkeys(__all__, _HOME))
"""Loaded lazily: a process that only measures a model needs the names of rules, but no tokenizer."""
