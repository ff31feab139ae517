"""From the text of a constraint to something that follows it token by token, on a thread of its own, within limits.

The thread belongs to the compiler, which ends it. What fails is an error of the one request that asked for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stoker.core.outline import GrammarText
from stoker.errors import GrammarInvalid, GrammarTooComplex, InvalidInput, Overloaded, UnsupportedSchema
from stoker.grammars.calls import alone, call_source
from stoker.grammars.gbnf import lark_of_gbnf
from stoker.grammars.matcher import GrammarConstraint
from stoker.grammars.notations import ESCAPES, WHITESPACE
from stoker.grammars.patterns import literal
from stoker.grammars.raw_text import regex
from stoker.grammars.references import Json, is_list, is_object
from stoker.grammars.schemas import lower
from stoker.grammars.vocabulary import Vocabulary, cut, engine_tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

MAX_REGEX: Final = 64 << 10
"""Characters of a regular expression."""
MAX_GRAMMAR: Final = 1 << 20
"""Characters of any other grammar."""
MAX_CALLS: Final = 5 << 20
"""Characters of the plan of an answer that may call tools, with the schemas of all tools."""
MAX_CHOICES: Final = 50_000
_NICE: Final = 10
"""Added to the niceness of the thread that compiles: a hostile grammar keeps it busy for seconds."""
_COMPLEX: Final = re.compile(
    r"too (complex|large|many|big|long|deep)|limit|fuel|level exceeded|max\b|max_", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much work grammars may make."""

    max_waiting: int = 16
    """Grammars that are compiled or wait for it."""
    cache_bytes: int = 64 << 20
    """For compiled grammars, as estimated from their texts."""
    max_items_in_row: int = 20_000
    step_max_items: int = 200_000
    """States of the parser in one step, 20 in a microsecond."""
    gbnf_step_max_items: int = 5_000_000
    """The same for GBNF, where each character is a step of its own."""
    max_lexer_states: int = 250_000
    """Of 1 to 2 KiB."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A grammar at its beginning, for one answer."""

    constraint: GrammarConstraint
    dropped: tuple[str, ...] = ()
    """What of a schema is not enforced, in words."""
    was_known: bool = False
    """It was compiled before."""


@dataclass(frozen=True, slots=True)
class _Source:
    """What the engine compiles."""

    text: str
    dropped: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    """See `CallSource.doubtful`."""


class GrammarCompiler:
    """Compiles grammars for one vocabulary. May be used from several threads; `close` it at the end.

    Args:
        vocabulary: of the model.
        limits: of each grammar, and of all together.
        observe: takes the seconds of each grammar that was not known, also of those that are refused.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        limits: Limits | None = None,
        observe: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._observe = observe
        self._vocabulary = vocabulary
        self._limits = limits or Limits()
        self._tokenizer: LLTokenizer | None = None
        self._spellings: dict[str, int] | None = None
        self._room = threading.BoundedSemaphore(self._limits.max_waiting)
        self._lock = threading.Lock()
        self._known: OrderedDict[GrammarText, Compiled] = OrderedDict()
        self._known_bytes = 0
        self._sizes: dict[GrammarText, int] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._is_closed = False
        self.num_hits = 0
        """Grammars that were known."""

    def open(self, grammar: GrammarText) -> Future[Compiled]:
        """A constraint for one answer, soon, or at once if the grammar is known.

        The future may fail with:
            GrammarInvalid: the grammar is malformed.
            GrammarTooComplex: it is over a limit.
            UnsupportedSchema: a JSON schema has what cannot be enforced.
            UnsupportedParameter: the grammar engine is not installed.

        Raises:
            Overloaded: too many grammars wait.
        """
        future: Future[Compiled] = Future()
        known = self._take(grammar)
        if known is not None:
            future.set_result(known)
            return future
        if not self._room.acquire(blocking=False):
            raise Overloaded("too many grammars are being compiled; try again in a moment", retry_after_s=1)
        try:
            future = self._executor().submit(self._compile, grammar)
        except BaseException:
            self._room.release()
            raise
        future.add_done_callback(lambda _: self._room.release())
        return future

    def continued(self, compiled: Compiled, text: str) -> Compiled:
        """The constraint after a text that is written already. Give it what `open` gave; it is used up.

        Raises:
            InvalidInput: the grammar has no text that begins so.
        """
        assert self._tokenizer is not None
        constraint = compiled.constraint
        for token_id in self._tokenizer.greedy_tokenize(text):
            constraint.push(token_id)
            if constraint.error is not None:
                message = "the message to continue is not the beginning of an answer that the constraint allows"
                raise InvalidInput(message, parameter="messages")
        return compiled

    def close(self) -> None:
        """Ends the thread after what it is doing; grammars that wait are cancelled."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is not None:
            thread.shutdown(wait=True, cancel_futures=True)

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._is_closed:
                raise InvalidInput("the model is being closed")
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "stoker-grammars", _make_room)
            return self._thread

    def _take(self, grammar: GrammarText) -> Compiled | None:
        with self._lock:
            known = self._known.get(grammar)
            if known is None:
                return None
            self._known.move_to_end(grammar)
            self.num_hits += 1
            return Compiled(known.constraint.copy(), known.dropped, was_known=True)

    def _compile(self, grammar: GrammarText) -> Compiled:
        known = self._take(grammar)
        if known is not None:
            return known
        begun_s = time.perf_counter()
        try:
            return self._compiled(grammar)
        finally:
            self._observe(time.perf_counter() - begun_s)

    def _compiled(self, grammar: GrammarText) -> Compiled:
        source = self._source(grammar)
        try:
            matcher = self._matcher(grammar, source)
        except (GrammarInvalid, GrammarTooComplex):
            if grammar.kind != "calls":
                raise
            source = self._relaxed(grammar)
            matcher = self._matcher(grammar, source)
        fresh = Compiled(matcher, source.dropped)
        self._keep(grammar, fresh, len(source.text))
        return Compiled(fresh.constraint.copy(), source.dropped)

    def _keep(self, grammar: GrammarText, compiled: Compiled, num_chars: int) -> None:
        size = 64 * 1024 + 16 * num_chars
        with self._lock:
            self._known[grammar] = compiled
            self._sizes[grammar] = size
            self._known_bytes += size
            while self._known_bytes > self._limits.cache_bytes:
                oldest, _ = self._known.popitem(last=False)
                self._known_bytes -= self._sizes.pop(oldest)

    def _matcher(self, grammar: GrammarText, source: _Source) -> GrammarConstraint:
        """At its beginning, where its first mask shows that it can be followed at all."""
        if self._tokenizer is None:
            self._tokenizer = engine_tokenizer(self._vocabulary)
        from llguidance import LLMatcher, LLParserLimits

        for body in source.doubtful:
            self._matcher(grammar, _Source(_lark(f"start: T\nT: {body}")))
        limits = self._limits
        matcher = LLMatcher(
            self._tokenizer,
            source.text,
            log_level=0,
            limits=LLParserLimits(
                max_items_in_row=limits.max_items_in_row,
                step_max_items=limits.gbnf_step_max_items if grammar.kind == "gbnf" else limits.step_max_items,
                max_lexer_states=limits.max_lexer_states,
                verbose_errors=False,
            ),
        )
        vocabulary = self._vocabulary
        constraint = GrammarConstraint(matcher, vocabulary.tokenizer.vocab_size, vocabulary.eog_token_ids)
        if not matcher.is_error():
            constraint.mask()
        if matcher.is_error():
            raise _refusal(grammar, matcher.get_error())
        return constraint

    def _source(self, grammar: GrammarText) -> _Source:
        limit = {"regex": MAX_REGEX, "calls": MAX_CALLS}.get(grammar.kind, MAX_GRAMMAR)
        if len(grammar.text) > limit:
            raise GrammarTooComplex(f"the grammar has over {limit} characters")
        match grammar.kind:
            case "json_schema":
                return _of_schema(grammar, grammar.text)
            case "json_object":
                return _of_schema(grammar, '{"type": "object"}')
            case "regex":
                return _Source(_lark(f"start: {regex(grammar.text)}"))
            case "choice":
                return _Source(_lark(_choices(grammar.text)))
            case "gbnf":
                return _Source(_lark(lark_of_gbnf(grammar.text, self._vocabulary.one_token)))
            case "lark":
                return _Source(_lark(grammar.text))
            case "calls":
                return self._of_calls(json.loads(grammar.text))

    def _of_calls(self, plan: Json, relaxed: Mapping[int, str] | None = None) -> _Source:
        relaxed = relaxed or {}
        source = call_source(plan, self._pieces, relaxed)
        grammars: list[Json] = [{"lark_grammar": source.lark}]
        dropped = (*source.dropped, *relaxed.values())
        if is_object(plan["content"]):
            content = self._source(GrammarText(**plan["content"]))
            grammars.append({"name": "content", **json.loads(content.text)["grammars"][0]})
            dropped = (*content.dropped, *dropped)
        return _Source(json.dumps({"grammars": grammars}), dropped, source.doubtful)

    def _relaxed(self, grammar: GrammarText) -> _Source:
        """The same calls, where the arguments of tools that the engine cannot follow are not constrained."""
        plan = json.loads(grammar.text)
        relaxed: dict[int, str] = {}
        for index, tool in enumerate(plan["tools"]):
            try:
                self._matcher(grammar, self._of_calls(alone(plan, index)))
            except InvalidInput as error:
                if tool["is_strict"]:
                    raise
                relaxed[index] = f"the parameters of the tool `{tool['name']}`: {error}"
        return self._of_calls(plan, relaxed)

    def _pieces(self, marker: str) -> list[str | int]:
        """A marker's tokens and the text between them, without tokens that end an answer."""
        if self._spellings is None:
            self._spellings = self._vocabulary.spellings()
        pieces = cut(marker, self._spellings)
        return [piece for piece in pieces if piece not in self._vocabulary.eog_token_ids]


def _make_room() -> None:
    """Lets the threads that compute go first where cores are short. Only Linux has priorities of single threads."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICE)


def _lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def _of_schema(grammar: GrammarText, text: str) -> _Source:
    lowered = lower(text, is_strict=grammar.is_strict)
    whitespace = WHITESPACE if grammar.whitespace is None else grammar.whitespace
    options = {"whitespace_pattern": whitespace, "json_allowed_escapes": ESCAPES}
    return _Source(
        json.dumps({"grammars": [{"json_schema": {**lowered.schema, "x-guidance": options}}]}), lowered.dropped
    )


def _choices(text: str) -> str:
    try:
        choices = json.loads(text)
    except ValueError as error:
        raise GrammarInvalid(f"the choices are not valid JSON: {error}") from None
    if not is_list(choices) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise GrammarInvalid("the choices are not a list of at least one string")
    if len(choices) > MAX_CHOICES:
        raise GrammarTooComplex(f"there are over {MAX_CHOICES} choices")
    return "start: CHOICE\nCHOICE: " + " | ".join(f"/{literal(choice)}/" if choice else '""' for choice in choices)


def _refusal(grammar: GrammarText, message: str) -> InvalidInput:
    """What a request is told of an error of the engine."""
    details = re.search(r"^( *)\^[\^ ]*\nerror: (.*)", message, re.MULTILINE)
    first = message.partition("\n")[0]
    if grammar.kind == "regex" and details is not None:
        return GrammarInvalid(
            f"the regular expression is not supported at character {len(details[1]) - 3}: {details[2]}"
        )
    if "NoExtension" in first:
        first = "no text matches it"
    reason = details[2] if details is not None else first
    if _COMPLEX.search(reason):
        return GrammarTooComplex(f"the grammar is too complex: {reason}")
    if grammar.kind in ("json_schema", "json_object"):
        return UnsupportedSchema(f"the schema cannot be enforced: {reason}", pointer="", keyword="", reason=reason)
    return GrammarInvalid(f"the grammar cannot be followed: {reason}")
