"""`stoker chat`: a conversation in the terminal. Ctrl-C stops the answer, Ctrl-D or /exit leaves."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated

import typer

from stoker.cli.download_bar import DownloadBar
from stoker.cli.later import conversation, llms, talk_commands
from stoker.cli.options import ENGINE, SAMPLING, Flags, Model, System, shared_options
from stoker.cli.reply_options import Plain, Think, reply_options
from stoker.cli.report import say
from stoker.cli.talk import keyboard, saved
from stoker.cli.talk.turns import Turns, counted
from stoker.cli.tool_rounds import MCP, ToolRounds, Yes, open_toolbox

if TYPE_CHECKING:
    from stoker.llm.options import ChatOptions

Continue = Annotated[bool, typer.Option("--continue", "-C", help="Continue the last conversation.")]
Stats = Annotated[bool, typer.Option("--stats", help="Show the speed after each answer, in tokens per second.")]
Private = Annotated[bool, typer.Option("--private", help="Store neither the conversation nor the input history.")]


@shared_options(ENGINE, SAMPLING)
def chat(
    flags: Flags,
    model: Model,
    system: System = None,
    continues: Continue = False,
    plain: Plain = False,
    stats: Stats = False,
    private: Private = False,
    think: Think = None,
    mcp: MCP = None,
    yes: Yes = False,
) -> None:
    """Chat with a model. /help lists all commands, Ctrl-C stops the answer, Ctrl-D or /exit leaves.

    On a terminal, the last conversation and the input history are stored for the next session.
    """
    with ExitStack() as stack:
        rounds = None
        if mcp:
            rounds = ToolRounds(stack.enter_context(open_toolbox(mcp, is_agreed=yes)), agrees_to_all=yes)
        converse(
            flags,
            model,
            system,
            options=reply_options(think=think),
            rounds=rounds,
            continues=continues,
            is_plain=plain,
            has_stats=stats,
            is_private=private,
        )


def converse(
    flags: Flags,
    model: str,
    system: str | None,
    *,
    options: ChatOptions | None = None,
    rounds: ToolRounds | None = None,
    continues: bool = False,
    is_plain: bool = False,
    has_stats: bool = False,
    is_private: bool = False,
) -> None:
    """Holds a conversation until the user leaves. `stoker run` without a prompt calls this too.

    Raises:
        StokerError: the first model cannot be loaded, or there is no conversation to continue.
    """
    turns = _turns(system, continues=continues)
    is_typed = keyboard.is_terminal()
    view = conversation.View(is_markdown=is_typed and not is_plain, has_stats=has_stats)

    def open_model(name: str) -> llms.LLM:
        return llms.LLM(flags.engine_config(name), progress=DownloadBar())

    is_kept = is_typed and not is_private
    talk = conversation.Talk(
        open_model, model, flags.sampling(), turns, view, options=options, rounds=rounds, is_kept=is_kept
    )
    with closing(talk):
        say(f"{talk.llm.card.name}: /help lists commands, Ctrl-C stops the answer, Ctrl-D or /exit leaves")
        if continues:
            say(f"(continued after {counted(len(turns))})")
        _hold(talk, is_private=is_private)


def _turns(system: str | None, *, continues: bool) -> Turns:
    turns = saved.load(saved.LAST) if continues else Turns()
    if system is not None:
        turns.system = system
    return turns


def _hold(talk: conversation.Talk, *, is_private: bool) -> None:
    """Reads messages, and runs them as commands or has the model answer them, until the user leaves."""
    typed = keyboard.Keyboard(lambda: [f"/{word}" for word in talk_commands.COMMANDS], keeps_history=not is_private)
    while not talk.is_over and (message := typed.next_message()) is not None:
        if talk_commands.is_command(message):
            talk_commands.obey(talk, message)
        elif message:
            talk.ask(talk_commands.as_text(message))
