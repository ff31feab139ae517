"""Answers with tools: the model calls a tool, the user agrees, the model gets the result, until it answers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast

import typer

from stoker.cli.later import mcp_servers
from stoker.cli.report import say
from stoker.errors import ConfigError, InvalidInput

if TYPE_CHECKING:
    from stoker.llm import Completion, ToolCall
    from stoker.llm.options import ChatOptions
    from stoker.text.messages import Message

MAX_ROUNDS = 10
"""Maximum number of rounds of tool calls for one question of the user."""
_MAX_SHOWN_CHARS = 300

MCP = Annotated[
    list[str] | None,
    typer.Option(
        "--mcp",
        metavar="COMMAND|URL|FILE",
        show_default=False,
        rich_help_panel="Tools",
        help="MCP server whose tools the model may call: a command, a URL, or a JSON file with mcpServers; may be "
        "repeated.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", rich_help_panel="Tools", help="Call tools without asking.")]


def open_toolbox(servers: Sequence[str], *, is_agreed: bool) -> mcp_servers.Toolbox:
    """The toolbox of these MCP servers. They start when the toolbox is entered.

    Args:
        servers: values of `--mcp`.
        is_agreed: whether the user has agreed to all calls in advance.

    Raises:
        ConfigError: a value names no server, or there is no terminal on which the user can be asked.
    """
    if not is_agreed and not _has_terminal():
        raise ConfigError(
            "--mcp asks before each call, which needs a terminal; --yes calls tools without asking", key="mcp"
        )
    return mcp_servers.Toolbox(mcp_servers.server_specs(servers))


class ToolRounds:
    """Answers the questions of one conversation with tools.

    Args:
        toolbox: a toolbox that has been entered.
        agrees_to_all: whether tools are called without asking the user, who can also agree to all calls later.
    """

    def __init__(self, toolbox: mcp_servers.Toolbox, *, agrees_to_all: bool) -> None:
        self._toolbox = toolbox
        self._agrees_to_all = agrees_to_all

    def answer(
        self,
        messages: Sequence[Any],
        options: ChatOptions,
        said: list[Message],
        ask: Callable[[Sequence[Any], ChatOptions], Completion],
    ) -> None:
        """Has the model answer, and calls its tools, until it answers without a call or after `MAX_ROUNDS` rounds.

        Args:
            messages: the conversation so far, with the question.
            options: keyword arguments of `LLM.chat`, without tools.
            said: receives the messages of the model and of the tools; after an interruption, those that came before.
            ask: generates and shows one answer of the model, and appends it to `said`.
        """
        with_tools: ChatOptions = {**options, "tools": self._toolbox.definitions}
        try:
            for _ in range(MAX_ROUNDS):
                calls = [call for call in ask([*messages, *said], with_tools).tool_calls if call.is_complete]
                if not calls:
                    return
                said.extend(call.result(self._result(call)) for call in calls)
            say(f"(stopped after {MAX_ROUNDS} rounds of tool calls)")
        finally:
            _drop_unanswered(said)

    def _result(self, call: ToolCall) -> str:
        say(f"[{self._toolbox.server_of(call.name)}] {call.name}({_shown(call.arguments)})")
        try:
            arguments = call.values
        except InvalidInput as error:
            return f"error: {error.message}"
        if not self._agrees():
            return "error: the user declined this call"
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
    """Removes the last message with calls unless all have results: the user may interrupt between two calls."""
    for index in range(len(said) - 1, -1, -1):
        if said[index].tool_calls:
            if len(said) - 1 - index < len(said[index].tool_calls):
                del said[index:]
            return


def _has_terminal() -> bool:
    stdin = cast("TextIO | None", sys.stdin)
    return stdin is not None and stdin.isatty()


def _shown(text: str) -> str:
    """The text on one line, cut off after `_MAX_SHOWN_CHARS` characters."""
    line = json.dumps(text, ensure_ascii=False)[1:-1] if "\n" in text else text
    return line if len(line) <= _MAX_SHOWN_CHARS else f"{line[:_MAX_SHOWN_CHARS]}…"
