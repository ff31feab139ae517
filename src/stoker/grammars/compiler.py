"""Compiles constraints (JSON schemas, regular expressions, grammars) to token masks, on a separate thread, with limits.

The thread belongs to the compiler, which ends it. A failure is an error of the one request with the constraint.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stoker.core.outline import GrammarText
from stoker.errors import GrammarInvalid, GrammarTooComplex, InvalidInput, Overloaded, UnsupportedSchema
from stoker.grammars.escapes import JsonConstraint, Spellings
from stoker.grammars.lowering import Lowering
from stoker.grammars.matcher import GrammarConstraint
from stoker.grammars.sources import Order, Source, of_lark, source_of
from stoker.grammars.vocabulary import Vocabulary, engine_tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_NICE: Final = 5
"""Added to the niceness of the compiling thread. With a much higher value, it does not run while all cores are busy."""
_COMPLEX: Final = re.compile(
    r"too (complex|large|many|big|long|deep)|limit|fuel|level exceeded|max\b|max_", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the work and memory of grammars."""

    max_waiting: int = 16
    """Maximum number of grammars that are being compiled or wait."""
    cache_bytes: int = 64 << 20
    """Maximum size of cached compiled grammars, estimated from their texts."""
    max_items_in_row: int = 20_000
    step_max_items: int = 200_000
    """Maximum number of parser states in one step; about 20 take a microsecond."""
    gbnf_step_max_items: int = 5_000_000
    """Maximum number of parser states in one step for GBNF, where each character is a separate step."""
    max_lexer_states: int = 250_000
    """Maximum number of lexer states, of 1 to 2 KiB each."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled grammar in its initial state, for one answer."""

    constraint: GrammarConstraint
    dropped: tuple[str, ...] = ()
    """The parts of a schema that are not enforced, in words."""
    was_known: bool = False
    """The grammar was in the cache."""


class GrammarCompiler:
    """Compiles and caches grammars for one vocabulary. Safe to use from several threads. The owner calls `close`.

    Args:
        vocabulary: the model's vocabulary.
        limits: limits of each grammar, and of all grammars together.
        observe: called with the seconds that each uncached grammar took, including refused ones.
        is_apart: run the preparation in Python (see `sources`) in a separate process.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        limits: Limits | None = None,
        observe: Callable[[float], None] = lambda seconds: None,
        *,
        is_apart: bool = False,
    ) -> None:
        self._observe = observe
        self._vocabulary = vocabulary
        self._limits = limits or Limits()
        self._tokenizer: LLTokenizer | None = None
        self._spellings: Spellings | None = None
        self._lowering = Lowering(vocabulary) if is_apart else None
        self._room = threading.BoundedSemaphore(self._limits.max_waiting)
        self._lock = threading.Lock()
        self._known: OrderedDict[GrammarText, Compiled] = OrderedDict()
        self._known_bytes = 0
        self._sizes: dict[GrammarText, int] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._is_closed = False
        self.num_hits = 0
        """Number of cache hits."""

    def open(self, grammar: GrammarText) -> Future[Compiled]:
        """A future with the constraint for one answer; it is done immediately if the grammar is cached.

        The future may fail with:
            GrammarInvalid: the grammar is malformed.
            GrammarTooComplex: the grammar exceeds a limit.
            UnsupportedSchema: a part of a JSON schema cannot be enforced.
            UnsupportedParameter: the grammar engine is not installed.

        Raises:
            Overloaded: too many grammars are waiting.
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
        """Advances a fresh result of `open`, which is changed and returned, past a text that begins the answer.

        Raises:
            InvalidInput: no text of the grammar begins with `text`.
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
        """Ends the thread after the grammar that is being compiled; waiting grammars are canceled."""
        if self._lowering is not None:
            self._lowering.close()
        with self._lock:
            self._is_closed = True
            thread = self._thread
        if thread is not None:
            thread.shutdown(wait=True, cancel_futures=True)

    def prepare(self) -> None:
        """Starts to create the engine's tokenizer ahead of the first grammar. This holds the GIL for 0.2 s to 1 s."""
        self._executor().submit(self._ready)

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
        self._ready()
        source = self._source(Order(grammar))
        try:
            matcher = self._matcher(grammar, source)
        except (GrammarInvalid, GrammarTooComplex):
            if grammar.kind != "calls":
                raise
            source = self._relaxed(grammar, source)
            matcher = self._matcher(grammar, source)
        fresh = Compiled(matcher, source.dropped)
        self._keep(grammar, fresh, len(source.text))
        return Compiled(fresh.constraint.copy(), source.dropped)

    def _ready(self) -> LLTokenizer:
        if self._tokenizer is None:
            if self._lowering is not None:
                self._lowering.start()  # in parallel with the creation of the tokenizer
            self._tokenizer, self._spellings = engine_tokenizer(self._vocabulary)
        return self._tokenizer

    def _keep(self, grammar: GrammarText, compiled: Compiled, num_chars: int) -> None:
        size = 64 * 1024 + 16 * num_chars
        with self._lock:
            self._known[grammar] = compiled
            self._sizes[grammar] = size
            self._known_bytes += size
            while self._known_bytes > self._limits.cache_bytes:
                oldest, _ = self._known.popitem(last=False)
                self._known_bytes -= self._sizes.pop(oldest)

    def _matcher(self, grammar: GrammarText, source: Source) -> GrammarConstraint:
        """The constraint in its initial state. Computing its first mask shows whether the engine can follow it."""
        from llguidance import LLMatcher, LLParserLimits

        for body in source.doubtful:
            self._matcher(grammar, Source(of_lark(f"start: T\nT: {body}")))
        limits = self._limits
        matcher = LLMatcher(
            self._ready(),
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
        names = (matcher, vocabulary.tokenizer.vocab_size, vocabulary.eog_token_ids)
        spellings = self._spellings if source.is_json else None
        constraint = JsonConstraint(*names, spellings) if spellings else GrammarConstraint(*names)
        if not matcher.is_error():
            constraint.mask()
        if matcher.is_error():
            raise _refusal(grammar, matcher.get_error())
        return constraint

    def _source(self, order: Order) -> Source:
        return source_of(order, self._vocabulary) if self._lowering is None else self._lowering.source(order)

    def _relaxed(self, grammar: GrammarText, source: Source) -> Source:
        """The source of a call grammar that allows any object as arguments of tools that the engine cannot follow.

        Raises:
            InvalidInput: such a tool is strict.
        """
        relaxed: dict[int, str] = {}
        for index, (name, is_strict) in enumerate(source.tools):
            try:
                self._matcher(grammar, self._source(Order(grammar, alone=index)))
            except InvalidInput as error:
                if is_strict:
                    raise
                relaxed[index] = f"the parameters of the tool `{name}`: {error}"
        return self._source(Order(grammar, relaxed=relaxed))


def _make_room() -> None:
    """Lowers this thread's priority below the computing threads. Only Linux has priorities of single threads."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICE)


def _refusal(grammar: GrammarText, message: str) -> InvalidInput:
    """The error of the request for an error message of the grammar engine."""
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
