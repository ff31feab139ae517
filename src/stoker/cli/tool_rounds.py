"""An answer that may call tools: the model asks, the user agrees, the result goes back, until there is an answer."""

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
"""Most times that one question of the user leads to calls."""
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
    """The tools of these MCP servers, not started yet.

    Args:
        servers: values of `--mcp`.
        is_agreed: the user has agreed to all calls.

    Raises:
        ConfigError: a value names no server, or there is no terminal to ask the user on.
    """
    if not is_agreed and not _has_terminal():
        raise ConfigError(
            "--mcp asks before each call, which needs a terminal; --yes calls tools without asking", key="mcp"
        )
    return mcp_servers.Toolbox(mcp_servers.server_specs(servers))


class ToolRounds:
    """Answers questions with tools.

    Args:
        toolbox: open.
        agrees_to_all: the user need not be asked.
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
        """Has a conversation answered.

        Args:
            messages: the conversation.
            options: keywords of `LLM.chat`, without tools.
            said: what the model and the tools add to the conversation; one that is interrupted is as long as it came.
            ask: shows one answer of the model, and appends it to `said`.
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
