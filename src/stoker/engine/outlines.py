"""Turns a request's outline into the constraint for its sampling and the markers that its stream looks for."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from stoker.core.histogram import Distribution, Histogram
from stoker.core.model_info import ModelInfo
from stoker.core.outline import GrammarText, Outline
from stoker.core.params import SamplingParams
from stoker.engine.metrics import COMPILE_BOUNDS
from stoker.engine.spans import SpanFollower, SpannedConstraint, State
from stoker.errors import GrammarTooComplex, InvalidInput, Overloaded
from stoker.lazy import lazy_module
from stoker.sampling.constraint import Constraint
from stoker.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from stoker.grammars import compiler as grammar_compiler
    from stoker.grammars import vocabulary
    from stoker.text.chat_formats import table
else:
    # Imported on first use, because only constrained requests need them.
    grammar_compiler = lazy_module("stoker.grammars.compiler")
    vocabulary = lazy_module("stoker.grammars.vocabulary")
    table = lazy_module("stoker.text.chat_formats.table")

_COMPILE_S = 10.0
"""Maximum time that a request waits for the compilation of its grammar, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOutline:
    """The parts of an answer that the stream of a request finds in its tokens."""

    reasoning: SpanFollower | None = None
    markers: Mapping[int, str] = field(default_factory=dict[int, str])
    """Marker tokens, which are reported separately from the text, with their spellings."""
    hides_stops: bool = False
    """Ignore stop strings in reasoning."""
    ends: tuple[str, ...] = ()
    """Texts that end the answer but are not reported as stop strings."""

    def follow(self, token_id: int) -> bool:
        """Advances the detection of reasoning by a token. Returns whether the token belongs to the reasoning."""
        if self.reasoning is None:
            return False
        was_content = self.reasoning.state is State.CONTENT
        self.reasoning.push(token_id)
        return not was_content and self.reasoning.num_tokens > 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """The constraint on the tokens of an answer."""

    constraint: Constraint | None = None
    """The constraint; None = any tokens."""
    relaxed: tuple[str, ...] = ()
    """Descriptions of the parts of a JSON schema that are not enforced."""


class Outlines:
    """Opens the outlines of requests. Any number of threads may use it at the same time.

    Args:
        info: properties of the model.
        tokenizer: safe to use from several threads.
        lowers_apart: Python code that translates grammars runs in a process of its own.
    """

    def __init__(self, info: ModelInfo, tokenizer: Tokenizer, *, lowers_apart: bool = False) -> None:
        self._lowers_apart = lowers_apart
        self._info = info
        self._tokenizer = tokenizer
        self._token_bytes = partial(tokenizer.token_bytes, render_special=True)
        self._lock = Lock()
        self._compiler: grammar_compiler.GrammarCompiler | None = None
        self._compile_s = Histogram(COMPILE_BOUNDS)

    def stream(self, outline: Outline) -> StreamOutline:
        """The reasoning and markers that the stream of a request looks for."""
        spellings = {spelling: self._tokenizer.encode(spelling) for spelling in outline.markers}
        span, encode = outline.reasoning, self._tokenizer.encode
        return StreamOutline(
            reasoning=None if span is None else SpanFollower(span, encode, self._token_bytes),
            markers={ids[0]: spelling for spelling, ids in spellings.items() if len(ids) == 1},
            hides_stops=outline.hides_stops,
            ends=outline.ends,
        )

    def bounds(self, outline: Outline, sampling: SamplingParams) -> Bounds:
        """The constraint on the tokens of an answer. Waits until its grammar is compiled.

        Raises:
            InvalidInput: the grammar is malformed, cannot be enforced, or contradicts the sampling parameters.
            Overloaded: too many grammars wait to be compiled.
        """
        compiled = None if outline.grammar is None else self._grammar(outline.grammar, sampling, outline.begun)
        content, relaxed = (None, ()) if compiled is None else (compiled.constraint, compiled.dropped)
        span = outline.reasoning
        if span is None or (content is None and span.budget is None and not span.can_be_ended):
            return Bounds(content, relaxed)
        encode, eog = self._tokenizer.encode, self._info.eog_token_ids
        spanned = SpannedConstraint(span, content, encode, self._token_bytes, self._info.vocab_size, eog)
        return Bounds(spanned, relaxed)

    def prepare(self) -> None:
        """Starts to build what the first grammar needs. Call it only while no request waits for a token."""
        if not self._info.can_generate:
            return
        with suppress(InvalidInput):  # the compiler is being closed
            self._opened_compiler().prepare()

    @property
    def compiled(self) -> tuple[Distribution, int]:
        """Compilation times of grammars in seconds, and how many grammars were found in the cache."""
        compiler = self._compiler
        return self._compile_s.snapshot(), 0 if compiler is None else compiler.num_hits

    def close(self) -> None:
        """Ends the thread that compiles grammars. Calling it twice is allowed."""
        with self._lock:
            compiler, self._compiler = self._compiler, None
        if compiler is not None:
            compiler.close()

    def _grammar(self, grammar: GrammarText, sampling: SamplingParams, begun: str) -> grammar_compiler.Compiled:
        if sampling.ignore_eos:
            message = "`ignore_eos` and a constraint cannot be combined: the constraint says where an answer ends"
            raise InvalidInput(message, parameter="ignore_eos")
        compiler = self._opened_compiler()
        future = compiler.open(grammar)
        try:
            return compiler.continued(future.result(_COMPILE_S), begun)
        except FutureTimeoutError:
            if future.cancel():
                raise Overloaded("other grammars are being compiled; try again in a moment", retry_after_s=1) from None
            raise GrammarTooComplex(f"the grammar was not compiled within {_COMPILE_S:g} s") from None

    def _opened_compiler(self) -> grammar_compiler.GrammarCompiler:
        with self._lock:
            if self._compiler is None:
                self._compiler = grammar_compiler.GrammarCompiler(
                    self._vocabulary(), observe=self._compile_s.observe, is_apart=self._lowers_apart
                )
            return self._compiler

    def _vocabulary(self) -> vocabulary.Vocabulary:
        tokenizer = self._tokenizer
        hidden = {
            token_id
            for token_id in range(tokenizer.vocab_size)
            if not tokenizer.token_bytes(token_id) and tokenizer.token_bytes(token_id, render_special=True)
        }
        markers = [tokenizer.encode(marker) for marker in table.ALL_MARKER_TOKENS]
        single = {token_ids[0] for token_ids in markers if len(token_ids) == 1}
        return vocabulary.Vocabulary(tokenizer, self._info.eog_token_ids, frozenset(hidden | single))
