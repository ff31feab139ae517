"""`stoker run`: answers one prompt. On a terminal, without a prompt, it holds a conversation."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.cli.answer import write_answer
from stoker.cli.cut_off import why_cut_off
from stoker.cli.download_bar import DownloadBar
from stoker.cli.later import chat, llms, msgspec
from stoker.cli.options import ENGINE, SAMPLING, Flags, Model, System, shared_options
from stoker.cli.prompt import given_prompt
from stoker.cli.reply_options import Plain, Schema, Think, reply_options
from stoker.cli.report import say
from stoker.cli.speed import Stopwatch
from stoker.cli.table import print_json
from stoker.cli.talk.screen import is_screen, show_answer
from stoker.cli.talk.turns import FileKind, TalkFile, asked_about
from stoker.cli.thoughts import spoken
from stoker.errors import InvalidInput

if TYPE_CHECKING:
    from stoker.core.params import SamplingParams
    from stoker.llm import LLM, Completion, TextStream
    from stoker.llm.options import ChatOptions

Prompt = Annotated[
    str | None,
    typer.Argument(
        metavar="PROMPT",
        show_default=False,
        help="Prompt; text from stdin is added after it. [default: stdin, or a conversation on a terminal]",
    ),
]
GivenPrompt = Annotated[
    str | None, typer.Option("--prompt", "-p", metavar="PROMPT", show_default=False, help="Same as PROMPT.")
]
Images = Annotated[
    list[str] | None,
    typer.Option("--image", metavar="FILE", show_default=False, help="Image to add to the prompt; may be repeated."),
]
Recordings = Annotated[
    list[str] | None,
    typer.Option(
        "--audio", metavar="FILE", show_default=False, help="Audio file to add to the prompt; may be repeated."
    ),
]
Files = Annotated[
    list[str] | None,
    typer.Option(
        "--file", metavar="FILE", show_default=False, help="PDF or text file to add to the prompt; may be repeated."
    ),
]
Stats = Annotated[bool, typer.Option("--stats", help="Show the speed after the answer, in tokens per second.")]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print the answer as a JSON object: text, finish_reason, usage, timings."),
]
Raw = Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")]


@shared_options(ENGINE, SAMPLING)
def run(
    flags: Flags,
    model: Model,
    prompt: Prompt = None,
    prompt_option: GivenPrompt = None,
    system: System = None,
    raw: Raw = False,
    image: Images = None,
    audio: Recordings = None,
    file: Files = None,
    stats: Stats = False,
    as_json: AsJson = False,
    plain: Plain = False,
    schema: Schema = None,
    think: Think = None,
) -> None:
    """Answer one prompt, or chat on a terminal. The answer is streamed to stdout, messages go to stderr."""
    sampling = flags.sampling()
    given: dict[FileKind, list[str] | None] = {"image": image, "audio": audio, "file": file}
    files = [TalkFile(kind, path) for kind, paths in given.items() for path in paths or ()]
    if raw and (system is not None or files):
        option = files[0].kind if system is None else "system"
        message = f"--{option} cannot be combined with --raw, which leaves out the chat template"
        raise InvalidInput(message, parameter=option)
    text = given_prompt(_one_prompt(prompt, prompt_option))
    options = reply_options(schema, think)
    if text is None:
        _check_conversation(["schema"] * (schema is not None) + ["json"] * as_json + [each.kind for each in files], raw)
        chat.converse(flags, model, system, options=options, is_plain=plain)
        return
    with llms.LLM(flags.engine_config(model), progress=DownloadBar()) as llm:
        is_raw = raw or _has_no_chat(llm, is_chat=system is not None or bool(files))
        stopwatch = Stopwatch()
        with _ask(llm, text, files, system, sampling, options, is_raw=is_raw) as stream:
            _show(stopwatch.watch(spoken(stream)), is_shown=not as_json, is_plain=plain or is_raw or schema is not None)
        answer = stream.completion
        if as_json:
            print_json(_described(answer, llm.card.name, stopwatch))
        if stats:
            say(stopwatch.described(answer.usage))
        if (why := why_cut_off(answer, llm.card, sampling, "--max-tokens N")) is not None:
            say(f"note: {why}")


def _check_conversation(options: Sequence[str], is_raw: bool) -> None:
    """
    Raises:
        InvalidInput: an option is for a single answer, which needs a prompt.
    """
    if options:
        raise InvalidInput(f"no prompt: --{options[0]} needs one, as PROMPT", parameter="prompt")
    if is_raw:
        raise InvalidInput("no prompt: --raw needs a text to continue, as PROMPT or piped in", parameter="prompt")


def _has_no_chat(llm: LLM, *, is_chat: bool) -> bool:
    if is_chat or llm.card.chat_template is not None:
        return False
    say(f"note: {llm.card.name} has no chat template: it continues the text as it is, as with --raw")
    return True


def _show(pieces: Iterable[str], *, is_shown: bool, is_plain: bool) -> None:
    if not is_shown:
        deque(pieces, maxlen=0)
    elif is_plain or not is_screen():
        write_answer(pieces)
    else:
        show_answer(pieces, is_markdown=True)


def _described(answer: Completion, model: str, stopwatch: Stopwatch) -> dict[str, Any]:
    usage = answer.usage
    return {
        "model": model,
        "text": answer.text,
        **({"reasoning": answer.reasoning} if answer.reasoning else {}),
        "finish_reason": answer.finish_reason,
        "usage": msgspec.structs.asdict(usage),
        "timings": stopwatch.timings(usage),
    }


def _one_prompt(argument: str | None, option: str | None) -> str | None:
    if argument is not None and option is not None:
        raise InvalidInput("the prompt is given twice: as PROMPT and with --prompt", parameter="prompt")
    return argument if option is None else option


def _ask(
    llm: LLM,
    text: str,
    files: Sequence[TalkFile],
    system: str | None,
    sampling: SamplingParams,
    options: ChatOptions,
    *,
    is_raw: bool,
) -> TextStream:
    if is_raw and "reasoning" in options:
        message = f"--think and --no-think are for chat templates: {llm.card.name} has none, or --raw leaves it out"
        raise InvalidInput(message, parameter="think")
    if is_raw:
        return llm.stream(text, sampling, response_format=options.get("response_format"))
    opening = [{"role": "system", "content": system}] if system else []
    return llm.stream_chat([*opening, asked_about(text, files)], sampling, **options)
