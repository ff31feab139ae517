from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.models.cache import cache_dir
from tests.grammars import Answers, download_suite


@pytest.fixture(scope="session")
def schema_suite() -> Path:
    """The JSON-Schema-Test-Suite, in the sources of the package jsonschema."""
    return download_suite(cache_dir() / "tests")


@pytest.fixture(scope="module")
def answers() -> Iterator[Answers]:
    """Over a vocabulary of bytes."""
    answers = Answers()
    yield answers
    answers.compiler.close()
