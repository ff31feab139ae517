"""Answers that grammars allow, and the JSON-Schema-Test-Suite."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.backends.scripted import EOS, IM_END, SPECIAL_TEXT, ScriptedTokenizer
from stoker.core.outline import GrammarText
from stoker.grammars.compiler import GrammarCompiler
from stoker.grammars.matcher import GrammarConstraint
from stoker.grammars.vocabulary import Tokenizer, Vocabulary
from tests.waiting import BOUND_S

BYTES = Vocabulary(ScriptedTokenizer(), frozenset({EOS, IM_END}), frozenset(SPECIAL_TEXT))
"""Each byte is a token."""

SUITE = "jsonschema==4.26.0"
"""The package whose sources come with the JSON-Schema-Test-Suite."""


@dataclass(frozen=True)
class Group:
    """A schema of the suite and its instances."""

    where: str
    schema: Any
    tests: list[dict[str, Any]]


def download_suite(folder: Path) -> Path:
    """The archive of the package's sources; fetched by pip if it is not in the folder yet."""
    folder.mkdir(parents=True, exist_ok=True)
    name = SUITE.replace("==", "-")
    if not (folder / f"{name}.tar.gz").exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-binary", "jsonschema", "--dest", folder, SUITE], check=True, timeout=600)
    return folder / f"{name}.tar.gz"


def read_suite(archive: Path) -> list[Group]:
    """All groups of the drafts that are known, without those of formats that are only annotations."""
    with tarfile.open(archive) as files:
        found = [
            (member.name.partition("/json/tests/")[2], files.extractfile(member))
            for member in files.getmembers()
            if "/json/tests/draft" in member.name and member.name.endswith(".json")
        ]
        return [
            Group(f"{name}: {group['description']}", _with_draft(name, group["schema"]), group["tests"])
            for name, file in sorted(found, key=lambda pair: pair[0])
            if file is not None and _is_known(name)
            for group in json.load(file)
        ]


_DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
_ENFORCED = ["date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid"]


def _is_known(name: str) -> bool:
    draft, _, rest = name.partition("/")
    is_annotation = rest in ("optional/content.json", "optional/ecmascript-regex.json")
    if rest.startswith("optional/format/"):
        return draft in _DRAFTS and Path(rest).stem in _ENFORCED
    return draft in _DRAFTS and not is_annotation


def _with_draft(name: str, schema: Any) -> Any:
    if not isinstance(schema, dict) or "$schema" in schema:
        return schema
    return {"$schema": _DRAFTS[name.partition("/")[0]], **schema}


def accepts(constraint: GrammarConstraint, token_ids: list[int]) -> bool:
    """Whether tokens are a whole text of the grammar."""
    for token_id in token_ids:
        if not constraint.allows(token_id):
            return False
        constraint.push(token_id)
    return constraint.can_end


class Answers:
    """Grammars opened one after the other, with one compiler."""

    def __init__(self, vocabulary: Vocabulary = BYTES) -> None:
        self.vocabulary = vocabulary
        self.compiler = GrammarCompiler(vocabulary)

    def open(self, grammar: GrammarText) -> GrammarConstraint:
        return self.compiler.open(grammar).result(BOUND_S).constraint

    def accept(self, grammar: GrammarText, text: str) -> bool:
        return accepts(self.open(grammar), self.vocabulary.tokenizer.encode(text, parse_special=False))


LIKELY = frozenset(b'"}],:0123456789 abetrufalsn')


def random_text(
    constraint: GrammarConstraint,
    vocabulary: Vocabulary,
    random: Random,
    *,
    most: int = 200,
    pieces: Sequence[list[int]] = (),
) -> str | None:
    """A text of random tokens that the grammar allows; None if it has no end within `most` tokens.

    Args:
        constraint: at the beginning.
        vocabulary: that it is for.
        random: chooses.
        most: tokens.
        pieces: texts that are written now and then where they are allowed.
    """
    parts: list[bytes] = []
    for _ in range(most):
        if constraint.is_complete or (constraint.can_end and random.random() < 0.3):
            return b"".join(parts).decode()
        allowed = [each for each in pieces if constraint.validate(each) == len(each)] if random.random() < 0.3 else []
        piece = random.choice(allowed) if allowed else [_random_token(constraint, vocabulary.tokenizer, random)]
        if piece[0] in vocabulary.eog_token_ids:
            return b"".join(parts).decode()
        for token_id in piece:
            constraint.push(token_id)
            assert constraint.error is None, constraint.error
            parts.append(vocabulary.tokenizer.token_bytes(token_id))
    return None


def _random_token(constraint: GrammarConstraint, tokenizer: Tokenizer, random: Random) -> int:
    words = constraint.mask()
    assert constraint.error is None, constraint.error
    assert words is not None
    allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
    assert allowed.size, "some token is always allowed"
    likely = allowed[_likely(tokenizer)[allowed]]
    return int(random.choice(likely if likely.size and random.random() < 0.8 else allowed))


@cache
def _likely(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    pieces = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
    return np.array([bool(piece) and set(piece) <= LIKELY for piece in pieces])


def read_json(text: str) -> Any:
    """With all digits of its numbers."""
    return json.loads(text, parse_float=Decimal)


def short_texts(alphabet: str, most: int) -> Iterator[str]:
    """Every text over an alphabet, the short ones first."""
    level = [""]
    for _ in range(most + 1):
        yield from level
        level = [text + char for text in level for char in alphabet]
