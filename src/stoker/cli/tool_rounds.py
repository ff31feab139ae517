"""An answer that may call tools: the model asks, the user agrees, the result goes back, until there is an answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast

import typer

from stoker.cli.answer import write
from stoker.cli.report import say
from stoker.cli.thoughts import spoken
from stoker.errors import ConfigError, InvalidInput

if TYPE_CHECKING:
    from stoker.cli.mcp_servers import Toolbox
    from stoker.core.params import SamplingParams
    from stoker.llm import LLM, ToolCall
    from stoker.llm.options import ChatOptions
    from stoker.text.messages import Message

MAX_ROUNDS = 10
"""Most times that one question of the user leads to calls."""
_MAX_SHOWN_CHARS = 300

MCP = Annotated[
    list[str] | None,
    typer.Option(
        "--mcp",
        metavar="COMMAND|URL|FILE",
        show_default=False,
        rich_help_panel="Tools",
        help="MCP server whose tools the model may call: a command, an address, or a JSON file with mcpServers; may be "
        "repeated.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", rich_help_panel="Tools", help="Call tools without asking.")]


def open_toolbox(servers: Sequence[str], *, is_agreed: bool) -> Toolbox:
    """The tools of these MCP servers, not started yet.

    Args:
        servers: values of `--mcp`.
        is_agreed: the user has agreed to all calls.

    Raises:
        ConfigError: a value names no server, or there is no terminal to ask the user on.
    """
    from stoker.cli.mcp_servers import Toolbox, server_specs

    if not is_agreed and not _has_terminal():
        raise ConfigError("--mcp asks before each call, and there is no terminal; agree to all with --yes", key="mcp")
    return Toolbox(server_specs(servers))


class ToolRounds:
    """Answers questions with tools.

    Args:
        llm: the model.
        toolbox: open.
        sampling: of every answer.
        options: further keywords of `LLM.chat`.
        agrees_to_all: the user need not be asked.
    """

    def __init__(
        self, llm: LLM, toolbox: Toolbox, sampling: SamplingParams, options: ChatOptions, *, agrees_to_all: bool
    ) -> None:
        self._llm = llm
        self._toolbox = toolbox
        self._sampling = sampling
        self._options = options
        self._agrees_to_all = agrees_to_all

    def answer(self, messages: Sequence[Any], said: list[Message]) -> None:
        """Writes the answer to a conversation; what it adds to it is appended to `said`, as far as it comes."""
        try:
            self._answer(messages, said)
        finally:
            _drop_unanswered(said)

    def _answer(self, messages: Sequence[Any], said: list[Message]) -> None:
        for _ in range(MAX_ROUNDS):
            calls = self._one_answer([*messages, *said], said)
            if not calls:
                return
            said.extend(call.result(self._result(call)) for call in calls)
        say(f"(stopped after {MAX_ROUNDS} rounds of tool calls)")

    def _one_answer(self, messages: Sequence[Any], said: list[Message]) -> Sequence[ToolCall]:
        options: ChatOptions = {**self._options, "tools": self._toolbox.definitions}
        with self._llm.stream_chat(messages, self._sampling, **options) as stream:
            last = ""
            try:
                for last in spoken(stream):
                    write(last)
            finally:
                stream.close()
                said.append(stream.completion.message)
            if last and not last.endswith("\n"):
                write("\n")
            return [call for call in stream.completion.tool_calls if call.is_complete]

    def _result(self, call: ToolCall) -> str:
        say(f"[{self._toolbox.server_of(call.name)}] {call.name}({_shown(call.arguments)})")
        try:
            arguments = call.values
        except InvalidInput as error:
            return f"error: {error.message}"
        if not self._agrees():
            return "error: the user does not allow this call"
        result = self._toolbox.call(call.name, arguments)
        say(f"=> {_shown(result)}")
        return result

    def _agrees(self) -> bool:
        if self._agrees_to_all:
            return True
        print("call it? y = yes, a = yes to all, anything else = no: ", end="", file=sys.stderr, flush=True)
        reply = sys.stdin.readline().strip().lower()
        self._agrees_to_all = reply in ("a", "all")
        return self._agrees_to_all or reply in ("y", "yes")


def _drop_unanswered(said: list[Message]) -> None:
    """Takes the last calls back if they have not all a result, as when the user stops between two of them."""
    for index in range(len(said) - 1, -1, -1):
        if said[index].tool_calls:
            if len(said) - 1 - index < len(said[index].tool_calls):
                del said[index:]
            return


def _has_terminal() -> bool:
    stdin = cast("TextIO | None", sys.stdin)
    return stdin is not None and stdin.isatty()


def _shown(text: str) -> str:
    """On one line, and not too long."""
    line = json.dumps(text, ensure_ascii=False)[1:-1] if "\n" in text else text
    return line if len(line) <= _MAX_SHOWN_CHARS else f"{line[:_MAX_SHOWN_CHARS]}…"
