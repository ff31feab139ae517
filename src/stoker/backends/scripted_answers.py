"""Scripted answers that a scripted model plays, for tests of clients. It computes nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from stoker.backends.scripted import EOS, ScriptedTokenizer
from stoker.core.batch import Entry
from stoker.errors import ConfigError, reason_of

_MAX_REMEMBERED = 4096
"""Maximum number of prompts whose answers are remembered."""


class PlayedAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer of a script."""

    text: str
    """The answer, in which special tokens are written by their texts."""
    when: str = ""
    """The answer is only for prompts that contain this text; empty = answers are given to prompts in turn."""
    token_ms: Annotated[float, msgspec.Meta(ge=0, le=60_000)] = 0.0
    """Minimum time in ms that each token of the answer takes, to imitate a slow model."""


class ScriptFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a script file."""

    answers: list[str | PlayedAnswer]
    special_tokens: list[str] = []
    """Texts that are single tokens, in addition to the markers of chat formats."""
    prompt_token_ms: Annotated[float, msgspec.Meta(ge=0, le=60_000)] = 0.0
    """Minimum time in ms that each prompt token takes unless it is cached, to imitate a slow model."""


_decoder: msgspec.json.Decoder[ScriptFile | list[str | PlayedAnswer]] = msgspec.json.Decoder(
    ScriptFile | list[str | PlayedAnswer]
)


def read_script(path: Path) -> ScriptFile:
    """Reads a script: a JSON list of answers, or an object with `answers` and `special_tokens`.

    Raises:
        ConfigError: the file cannot be read, is not a script, or has no answers.
    """
    try:
        read = _decoder.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"the script {path} cannot be read: {reason_of(error)}", key="script") from error
    script = read if isinstance(read, ScriptFile) else ScriptFile(read)
    if not script.answers:
        raise ConfigError(f"the script {path} has no answers", key="script")
    return script


class PlayedScript:
    """Plays the answers of a script. Each new prompt gets the next answer; a repeated prompt gets the same answer.

    The position in an answer is the number of its tokens, so a constraint that changes some tokens does not end it.

    Args:
        script: the answers, and what they are played with.
        tokenizer: the tokenizer with the script's special tokens.
    """

    def __init__(self, script: ScriptFile, tokenizer: ScriptedTokenizer) -> None:
        given = [answer if isinstance(answer, PlayedAnswer) else PlayedAnswer(answer) for answer in script.answers]
        self._prompt_token_s = script.prompt_token_ms / 1000
        self._began_s = self._due_s = 0.0
        """When the step began, and how long it takes at least."""
        self._tokenizer = tokenizer
        self._answers = [[*tokenizer.encode(answer.text), EOS] for answer in given]
        self._token_s = [answer.token_ms / 1000 for answer in given]
        self._conditions = [(answer.when, index) for index, answer in enumerate(given) if answer.when]
        self._in_turn = [index for index, answer in enumerate(given) if not answer.when] or [len(given) - 1]
        self._num_new = 0
        self._places: dict[int, tuple[int, int]] = {}
        """For each slot the index of the answer that is played there, and the number of its tokens so far."""
        self._known: dict[int, int] = {}
        """The index of the answer to each prompt, by the hash of the prompt."""

    def begin_step(self, num_prompt_tokens: int) -> None:
        """See `Script.begin_step`."""
        self._began_s, self._due_s = time.monotonic(), num_prompt_tokens * self._prompt_token_s

    def end_step(self) -> None:
        """See `Script.end_step`. The time that the step took to compute is a part of that time."""
        left_s = self._began_s + self._due_s - time.monotonic() if self._due_s else 0.0
        if left_s > 0:
            time.sleep(left_s)

    def next_token(self, slot: int, entries: Sequence[Entry], *, is_decode: bool) -> int:
        """See `Script.next_token`."""
        place = self._places.get(slot) if is_decode else None
        index, at = self._begin(entries) if place is None else place
        self._places[slot] = (index, at + 1)
        answer = self._answers[index]
        self._due_s += self._token_s[index]
        return answer[min(at, len(answer) - 1)]

    def forget(self, slot: int) -> None:
        """See `Script.forget`."""
        self._places.pop(slot, None)

    def _begin(self, entries: Sequence[Entry]) -> tuple[int, int]:
        """The index of the answer to a prompt, and how many of its tokens the entries contain if it was interrupted."""
        for index, answer in enumerate(self._answers):
            for length in range(min(len(answer) - 1, len(entries) - 1), 0, -1):
                is_begun = list(entries[-length:]) == answer[:length]
                if is_begun and self._known.get(hash(tuple(entries[:-length]))) == index:
                    return index, length
        key = hash(tuple(entries))
        if key not in self._known:
            self._known[key] = self._chosen(entries)
            if len(self._known) > _MAX_REMEMBERED:
                del self._known[next(iter(self._known))]
        return self._known[key], 0

    def _chosen(self, entries: Sequence[Entry]) -> int:
        prompt = b"".join(self._tokenizer.token_bytes(entry, render_special=True) for entry in entries)
        text = prompt.decode("utf-8", "replace")
        for condition, index in self._conditions:
            if condition in text:
                return index
        self._num_new += 1
        return self._in_turn[(self._num_new - 1) % len(self._in_turn)]
