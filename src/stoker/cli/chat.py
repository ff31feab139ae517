"""`stoker chat`: a conversation in the terminal. Ctrl-C stops the answer, Ctrl-D or /exit leaves."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, TextIO, cast

from stoker.cli.answer import write_answer
from stoker.cli.download_bar import DownloadBar
from stoker.cli.options import ENGINE, SAMPLING, Flags, Model, System, shared_options
from stoker.cli.prompt import checked_text
from stoker.cli.report import say, say_error
from stoker.errors import InvalidInput

if TYPE_CHECKING:
    from stoker.core.params import SamplingParams
    from stoker.llm import LLM

_LEAVE = frozenset({"/exit", "/quit", "/bye"})
_CLEAR = "/clear"
_HELP = frozenset({"/help", "/?"})
_COMMANDS = "Ctrl-C stops the answer, /clear starts over, Ctrl-D or /exit leaves"


@shared_options(ENGINE, SAMPLING)
def chat(flags: Flags, model: Model, system: System = None) -> None:
    """Chat with a model. Ctrl-C stops the answer, /clear starts over, Ctrl-D or /exit leaves."""
    from stoker.llm import LLM

    sampling = flags.sampling()
    with LLM(flags.engine_config(model), progress=DownloadBar()) as llm:
        say(f"{llm.card.name}: {_COMMANDS}")
        _Conversation(llm, sampling, system).hold()


class _Conversation:
    """What has been said so far, and how it goes on."""

    def __init__(self, llm: LLM, sampling: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._sampling = sampling
        self._opening = [{"role": "system", "content": system}] if system else []
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
        try:
            answer = self._answer([*self._messages, {"role": "user", "content": checked_text(line, "this line")}])
        except InvalidInput as error:
            say_error(error)
            say("(this line does not count; /clear begins a new conversation)")
            return
        self._messages += [{"role": "user", "content": line}, {"role": "assistant", "content": answer}]

    def _answer(self, messages: list[dict[str, str]]) -> str:
        """The answer, as far as it came: the user may stop it."""
        with self._llm.stream_chat(messages, self._sampling) as stream:
            try:
                write_answer(stream)
            except KeyboardInterrupt:
                stream.close()
                say("\n(stopped)")
            return stream.completion.text


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
