"""Fixtures for every test: the real models, downloaded once into the platform's cache directory."""

from pathlib import Path

import pytest

from stoker.models.store import resolve


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct: llama architecture, byte-level BPE, with a chat template."""
    return resolve("smollm2")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M: a base model with sliding-window attention and a SentencePiece vocabulary."""
    return resolve("gemma3")
