"""A conversation with a model in the terminal: has questions answered, and drops old turns from a full context."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stoker.cli.cut_off import why_cut_off
from stoker.cli.prompt import checked_text
from stoker.cli.report import say, say_error
from stoker.cli.speed import Stopwatch
from stoker.cli.talk import saved
from stoker.cli.talk.screen import show_answer
from stoker.cli.talk.turns import Said, Turns, said_of
from stoker.cli.thoughts import spoken
from stoker.errors import ContextLengthExceeded, InvalidInput, StokerError

if TYPE_CHECKING:
    from stoker.cli.tool_rounds import ToolRounds
    from stoker.core.params import SamplingParams
    from stoker.llm import LLM
    from stoker.llm.completion import Completion
    from stoker.llm.options import ChatOptions
    from stoker.text.messages import Message

_NEARLY_FULL = 0.8


@dataclasses.dataclass(slots=True)
class View:
    """How answers are shown."""

    is_markdown: bool = False
    has_stats: bool = False


class Talk:
    """A conversation with a model. It owns the loaded model until `close`.

    Args:
        open_model: loads a model by name.
        model: the name of the first model.
        sampling: sampling parameters of every answer; `/set` replaces them.
        turns: the messages so far.
        view: how answers are shown.
        options: further keyword arguments of `LLM.stream_chat`. None = no arguments.
        rounds: answers with tools. None = the model gets no tools.
        is_kept: whether the conversation is saved as `saved.LAST` after each answer.
    """

    def __init__(
        self,
        open_model: Callable[[str], LLM],
        model: str,
        sampling: SamplingParams,
        turns: Turns,
        view: View,
        *,
        options: ChatOptions | None = None,
        rounds: ToolRounds | None = None,
        is_kept: bool = False,
    ) -> None:
        self._options = ChatOptions() if options is None else options
        self._rounds = rounds
        self._open_model = open_model
        self._is_kept = is_kept
        self._is_warned = False
        self.is_over = False
        """Whether the user has left the conversation."""
        self.model = model
        self.llm = open_model(model)
        self.sampling = sampling
        self.turns = turns
        self.view = view

    def close(self) -> None:
        """Frees the model."""
        self.llm.close()

    def ask(self, question: str) -> bool:
        """Has a question answered, and adds question and answer to the conversation. A refused question is reported.

        Returns:
            Whether there is an answer, or a part of one.
        """
        before = self.turns.copy()
        try:
            checked_text(question, "this message")
            self._make_room(question)
            self._answer(question)
            return True
        except InvalidInput as error:
            self.turns = before
            say_error(error)
            say("(message not sent; /clear starts over)")
        except KeyboardInterrupt:
            say("\n(stopped before the answer began)")
        return False

    def retry(self) -> None:
        """Has the last question answered again. The old answer stays if there is no new one."""
        before = self.turns.copy()
        question = self.turns.undo()
        if question is None:
            raise InvalidInput("there is no message yet")
        if not self.ask(question):
            self.turns = before

    def change_model(self, name: str) -> None:
        """Continues the conversation with another model.

        Raises:
            StokerError: the model cannot be loaded. The previous model is loaded again.
        """
        self.llm.close()
        try:
            self.llm, self.model = self._open_model(name), name
        except StokerError:
            self.llm = self._open_model(self.model)
            raise

    def _make_room(self, question: str) -> None:
        num_dropped = self.turns.make_room(question, self.llm.card.context_size)
        if num_dropped:
            self._say_dropped(num_dropped)

    def _answer(self, question: str) -> None:
        while True:
            try:
                answers, completion = self._answers(self.turns.with_question(question))
                break
            except ContextLengthExceeded:
                if not self.turns.drop_oldest():
                    raise
                self._say_dropped(1)
        usage = completion.usage
        self.turns.add(question, answers, usage.prompt_tokens + usage.completion_tokens)
        self._say_how_full(completion)
        if self._is_kept:
            saved.save(saved.LAST, self.turns, self.model)

    def _answers(self, messages: Sequence[Said]) -> tuple[list[Said], Completion]:
        """The messages that follow a question, up to an interruption by the user, and the last completion."""
        said: list[Message] = []
        completions: list[Completion] = []

        def ask(messages: Sequence[Any], options: ChatOptions) -> Completion:
            return self._one_answer(messages, options, said, completions)

        try:
            if self._rounds is None:
                ask(messages, self._options)
            else:
                self._rounds.answer(messages, self._options, said, ask)
        except KeyboardInterrupt:
            if not said:
                raise
            say("\n(stopped)")
        return list(map(said_of, said)), completions[-1]

    def _one_answer(
        self, messages: Sequence[Any], options: ChatOptions, said: list[Message], completions: list[Completion]
    ) -> Completion:
        stopwatch = Stopwatch()
        with self.llm.stream_chat(list(messages), self.sampling, **options) as stream:
            try:
                show_answer(stopwatch.watch(spoken(stream)), is_markdown=self.view.is_markdown)
            except KeyboardInterrupt:
                stream.close()
                raise
            finally:
                completions.append(stream.completion)
                said.append(stream.completion.message)
        if self.view.has_stats:
            say(stopwatch.described(stream.completion.usage))
        return stream.completion

    def _say_dropped(self, count: int) -> None:
        what = "the oldest turn was" if count == 1 else f"the {count} oldest turns were"
        say(f"(the context of {self.llm.card.context_size} tokens is full: {what} dropped)")

    def _say_how_full(self, completion: Completion) -> None:
        size = self.llm.card.context_size
        if (why := why_cut_off(completion, self.llm.card, self.sampling, "/set max_tokens N")) is not None:
            say(f"({why})")
        elif self.turns.num_tokens > _NEARLY_FULL * size and not self._is_warned:
            self._is_warned = True
            say(f"({self.turns.num_tokens} of {size} tokens are used; the oldest turns are dropped when all are)")
