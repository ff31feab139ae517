"""`stoker run`: one prompt, one answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stoker.cli.answer import write_answer
from stoker.cli.download_bar import DownloadBar
from stoker.cli.options import ENGINE, SAMPLING, Flags, Model, System, shared_options
from stoker.cli.prompt import checked_text, read_prompt
from stoker.cli.report import say
from stoker.errors import InvalidInput

if TYPE_CHECKING:
    from stoker.core.params import SamplingParams
    from stoker.llm import LLM, TextStream

Prompt = Annotated[
    str | None, typer.Argument(metavar="PROMPT", show_default=False, help="Prompt; missing or - = read it from stdin.")
]
Raw = Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")]


@shared_options(ENGINE, SAMPLING)
def run(flags: Flags, model: Model, prompt: Prompt = None, system: System = None, raw: Raw = False) -> None:
    """Answer one prompt. The answer is streamed to stdout, messages go to stderr."""
    sampling = flags.sampling()
    text = read_prompt() if prompt in (None, "-") else checked_text(prompt, "PROMPT")
    if raw and system is not None:
        raise InvalidInput("--system is part of the chat template, which --raw leaves out", parameter="system")
    from stoker.llm import LLM

    with LLM(flags.engine_config(model), progress=DownloadBar()) as llm:
        with _ask(llm, text, system, sampling, is_raw=raw) as stream:
            write_answer(stream)
        if stream.completion.finish_reason == "length" and sampling.max_tokens is None:
            say(f"note: the answer was cut off after {stream.completion.usage.completion_tokens} tokens")


def _ask(llm: LLM, text: str, system: str | None, sampling: SamplingParams, *, is_raw: bool) -> TextStream:
    if not is_raw and system is None and llm.card.chat_template is None:
        say(f"note: {llm.card.name} has no chat template: it continues the text as it is, as with --raw")
        is_raw = True
    if is_raw:
        return llm.stream(text, sampling)
    given = {"system": system, "user": text}
    return llm.stream_chat([{"role": role, "content": said} for role, said in given.items() if said], sampling)
