"""`stoker chat`: a conversation in the terminal. Ctrl-C stops the answer, Ctrl-D or /exit leaves."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO, cast

from stoker.cli.answer import write_answer
from stoker.cli.download_bar import DownloadBar
from stoker.cli.options import ENGINE, SAMPLING, Flags, Model, System, shared_options
from stoker.cli.prompt import checked_text
from stoker.cli.reply_options import Think, reply_options
from stoker.cli.report import say, say_error
from stoker.cli.thoughts import spoken
from stoker.cli.tool_rounds import MCP, ToolRounds, Yes, open_toolbox
from stoker.errors import InvalidInput

if TYPE_CHECKING:
    from stoker.core.params import SamplingParams
    from stoker.llm import LLM
    from stoker.llm.options import ChatOptions
    from stoker.text.messages import Message

_LEAVE = frozenset({"/exit", "/quit", "/bye"})
_CLEAR = "/clear"
_HELP = frozenset({"/help", "/?"})
_COMMANDS = "Ctrl-C stops the answer, /clear starts over, Ctrl-D or /exit leaves"


@shared_options(ENGINE, SAMPLING)
def chat(
    flags: Flags, model: Model, system: System = None, think: Think = None, mcp: MCP = None, yes: Yes = False
) -> None:
    """Chat with a model. Ctrl-C stops the answer, /clear starts over, Ctrl-D or /exit leaves."""
    from stoker.llm import LLM

    sampling, options = flags.sampling(), reply_options(think=think)
    with ExitStack() as stack:
        toolbox = stack.enter_context(open_toolbox(mcp, is_agreed=yes)) if mcp else None
        llm = stack.enter_context(LLM(flags.engine_config(model), progress=DownloadBar()))
        rounds = None if toolbox is None else ToolRounds(llm, toolbox, sampling, options, agrees_to_all=yes)
        say(f"{llm.card.name}: {_COMMANDS}")
        _Conversation(llm, sampling, system, options, rounds).hold()


class _Conversation:
    """What has been said so far, and how it goes on."""

    def __init__(
        self, llm: LLM, sampling: SamplingParams, system: str | None, options: ChatOptions, rounds: ToolRounds | None
    ) -> None:
        self._llm = llm
        self._sampling = sampling
        self._options = options
        self._rounds = rounds
        """Answers instead, if there are tools."""
        self._opening: list[Any] = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._opening)

    def hold(self) -> None:
        """Question and answer until the user leaves."""
        while (line := _read_line()) is not None and line not in _LEAVE:
            if line == _CLEAR:
                self._messages = list(self._opening)
                say("(a new conversation)")
            elif line in _HELP:
                say(f"({_COMMANDS})")
            elif line:
                try:
                    self._take_turn(line)
                except KeyboardInterrupt:
                    say("\n(stopped before the answer began)")

    def _take_turn(self, line: str) -> None:
        question = {"role": "user", "content": line}
        try:
            checked_text(line, "this line")
            answer = self._answer([*self._messages, question])
        except InvalidInput as error:
            say_error(error)
            say("(this line does not count; /clear begins a new conversation)")
            return
        self._messages += [question, *answer]

    def _answer(self, messages: list[Any]) -> list[Message]:
        """The answer, as far as it came: the user may stop it."""
        said: list[Message] = []
        try:
            if self._rounds is not None:
                self._rounds.answer(messages, said)
                return said
            with self._llm.stream_chat(messages, self._sampling, **self._options) as stream:
                try:
                    write_answer(spoken(stream))
                finally:
                    stream.close()
                    said.append(stream.completion.message)
        except KeyboardInterrupt:
            say("\n(stopped)")
        return said


def _read_line() -> str | None:
    """What the user says next, without blanks around it; None = nothing more."""
    stdin = cast("TextIO | None", sys.stdin)
    if stdin is None:
        return None
    is_interactive = stdin.isatty()
    if is_interactive:
        with suppress(ImportError):
            import_module("readline")  # gives `input` its line editing and history
    while True:
        try:
            return _ask(is_interactive).strip()
        except KeyboardInterrupt:
            say("\n(Ctrl-D or /exit leaves)")
        except EOFError:
            if is_interactive:
                say("")
            return None
        except UnicodeDecodeError as error:
            raise InvalidInput(f"standard input is not valid UTF-8: {error.reason}", parameter="prompt") from error


def _ask(is_interactive: bool) -> str:
    """One line of stdin. Without a terminal on both sides `input` would write to stdout, which is for answers."""
    stdout = cast("TextIO | None", sys.stdout)
    if is_interactive and stdout is not None and stdout.isatty():
        return input("> ")
    if is_interactive:
        print("> ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
