"""The lines of a conversation that begin with a slash."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

from stoker.cli.report import say, say_error
from stoker.cli.talk import saved
from stoker.cli.talk.talk import Talk
from stoker.cli.talk.turns import FileKind, TalkFile
from stoker.core.params import SamplingParams
from stoker.engine.cards import media_refused
from stoker.errors import InvalidInput, StokerError

_COMMAND = re.compile(r"/(?P<word>[a-z?]+)(?:\s+(?P<rest>.*))?", re.DOTALL)


class _Command(NamedTuple):
    run: Callable[[Talk, str], None]
    usage: str
    meaning: str


def is_command(message: str) -> bool:
    """Whether a message is a command; one that begins with two slashes is text, and so is a path."""
    return _COMMAND.fullmatch(message) is not None


def as_text(message: str) -> str:
    """What is sent for a message that is no command: `//` at its beginning stands for one slash."""
    return message[1:] if message.startswith("//") else message


def obey(talk: Talk, message: str) -> None:
    """Does what a command says; what is wrong with it is told."""
    found = _COMMAND.fullmatch(message)
    assert found is not None, "it is a command"
    command = COMMANDS.get(_OTHER_WORDS.get(found["word"], found["word"]))
    try:
        if command is None:
            raise InvalidInput(f"there is no command /{found['word']}: /help lists them; // begins a text with a slash")
        command.run(talk, (found["rest"] or "").strip())
    except StokerError as error:
        say_error(error)
    except KeyboardInterrupt:
        say("\n(stopped)")


def _help(_talk: Talk, _rest: str) -> None:
    for command in COMMANDS.values():
        say(f"  {command.usage:28}{command.meaning}")
    say('Ctrl-C stops the answer, Ctrl-D leaves. Alt-Enter or """ begins a message of several lines.')


def _clear(talk: Talk, _rest: str) -> None:
    talk.turns.clear()
    say("(a new conversation)")


def _system(talk: Talk, rest: str) -> None:
    if rest:
        talk.turns.system = "" if rest == "-" else rest.removeprefix('"').removesuffix('"')
    say(f"system prompt: {talk.turns.system or 'none'}")


def _set(talk: Talk, rest: str) -> None:
    name, _, value = rest.partition(" ")
    match name:
        case "":
            _show_settings(talk)
        case "markdown":
            talk.view.is_markdown = _is_on(value)
        case "stats":
            talk.view.has_stats = _is_on(value)
        case _:
            talk.sampling = dataclasses.replace(talk.sampling, **{_parameter(name): _value(name, value.strip())})


def _show_settings(talk: Talk) -> None:
    given = {name: value for name, value in dataclasses.asdict(talk.sampling).items() if value is not None}
    for name, value in given.items():
        say(f"  {name} {value}")
    say(f"  markdown {_on(talk.view.is_markdown)}")
    say(f"  stats {_on(talk.view.has_stats)}")


def _on(is_on: bool) -> str:
    return "on" if is_on else "off"


def _is_on(value: str) -> bool:
    if value not in ("on", "off", ""):
        raise InvalidInput(f"on or off, not {value!r}")
    return value != "off"


_OTHER_NAMES = {"num_predict": "max_tokens", "temp": "temperature", "repeat_penalty": "repetition_penalty"}


def _parameter(name: str) -> str:
    own = _OTHER_NAMES.get(name, name)
    if own not in _kinds():
        raise InvalidInput(f"there is no setting {name!r}; settings: markdown, stats, {', '.join(_kinds())}")
    return own


def _value(name: str, text: str) -> Any:
    """`-` takes a setting back; several stop strings have commas between them."""
    kind = _kinds()[_parameter(name)]
    if text in ("", "-"):
        return None
    if kind is tuple:
        return tuple(text.split(","))
    try:
        return kind(text)
    except ValueError:
        raise InvalidInput(f"{name} must be a number, not {text!r}") from None


def _kinds() -> Mapping[str, Callable[[str], Any]]:
    """The sampling parameters that a line can set, with how its text becomes their value."""
    hints = {name: get_args(hint)[0] for name, hint in get_type_hints(SamplingParams).items() if get_args(hint)}
    numbers: dict[str, Callable[[str], Any]] = {name: kind for name, kind in hints.items() if kind in (int, float)}
    return {**numbers, "stop": tuple}


def _model(talk: Talk, rest: str) -> None:
    if rest:
        talk.change_model(rest)
    say(f"model: {talk.llm.card.name}")


def _image(talk: Talk, rest: str) -> None:
    _attach(talk, "image", "images", rest)


def _audio(talk: Talk, rest: str) -> None:
    _attach(talk, "audio", "recordings", rest)


def _file(talk: Talk, rest: str) -> None:
    _attach(talk, "file", "documents", rest)


def _attach(talk: Talk, kind: FileKind, plural: str, rest: str) -> None:
    turns = talk.turns
    if rest == "-":
        turns.files = [file for file in turns.files if file.kind != kind]
    elif rest:
        if kind != "file" and kind not in talk.llm.card.media:
            raise media_refused(kind)
        path = Path(rest.strip("\"'")).expanduser().absolute()
        if not path.is_file():
            raise InvalidInput(f"there is no file {path}")
        turns.files.append(TalkFile(kind, str(path)))
    say(f"{plural} of the next question: {', '.join(file.path for file in turns.files if file.kind == kind) or 'none'}")


def _retry(talk: Talk, _rest: str) -> None:
    talk.retry()


def _undo(talk: Talk, _rest: str) -> None:
    question = talk.turns.undo()
    say("there is no question yet" if question is None else f"(taken back: {question[:60]})")


def _save(talk: Talk, rest: str) -> None:
    say(f"saved: {saved.save(rest or saved.LAST, talk.turns, talk.model)}")


def _load(talk: Talk, rest: str) -> None:
    talk.turns = saved.load(rest or saved.LAST)
    say(f"({len(talk.turns)} turns; the conversation goes on)")


def _tokens(talk: Talk, _rest: str) -> None:
    say(f"{talk.turns.num_tokens} of {talk.llm.card.context_size} tokens, in {len(talk.turns)} turns")


def _exit(talk: Talk, _rest: str) -> None:
    talk.is_over = True


COMMANDS: Mapping[str, _Command] = {
    "help": _Command(_help, "/help", "show this list"),
    "clear": _Command(_clear, "/clear", "start over; the system prompt stays"),
    "system": _Command(_system, "/system [TEXT]", "show or set the system prompt; - removes it"),
    "set": _Command(_set, "/set [NAME [VALUE]]", "show or set temperature, max_tokens, …, markdown, stats"),
    "model": _Command(_model, "/model [NAME]", "show the model, or go on with another one"),
    "image": _Command(_image, "/image [FILE]", "ask the next question about an image, too; - takes it back"),
    "audio": _Command(_audio, "/audio [FILE]", "ask the next question about a recording; - takes it back"),
    "file": _Command(_file, "/file [FILE]", "ask the next question about a PDF or text file; - takes it back"),
    "retry": _Command(_retry, "/retry", "have the last question answered again"),
    "undo": _Command(_undo, "/undo", "take the last question and its answer back"),
    "save": _Command(_save, "/save [NAME]", "keep the conversation"),
    "load": _Command(_load, "/load [NAME]", "go on with one that was kept"),
    "tokens": _Command(_tokens, "/tokens", "show how full the context is"),
    "exit": _Command(_exit, "/exit", "leave"),
}
"""By word."""
_OTHER_WORDS = {"?": "help", "quit": "exit", "bye": "exit"}
