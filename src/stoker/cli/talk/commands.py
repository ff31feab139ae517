"""The slash commands of a conversation in the terminal, such as `/set` and `/model`."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args, get_type_hints

from stoker.cli.report import say, say_error
from stoker.cli.talk import saved
from stoker.cli.talk.talk import Talk
from stoker.cli.talk.turns import FileKind, TalkFile, counted
from stoker.core.params import SamplingParams
from stoker.engine.cards import media_refused
from stoker.errors import InvalidInput, StokerError

_COMMAND = re.compile(r"/(?P<word>[A-Za-z?][\w-]*)(?:\s+(?P<rest>.*))?", re.DOTALL)


class _Command(NamedTuple):
    run: Callable[[Talk, str], None]
    usage: str
    meaning: str


def is_command(message: str) -> bool:
    """Whether a message is a command. One that begins with `//` is text, and so is a path such as `/etc/hosts`."""
    return _COMMAND.fullmatch(message) is not None


def as_text(message: str) -> str:
    """The text that the model gets for a message that is not a command: `//` at its beginning becomes one slash."""
    return message[1:] if message.startswith("//") else message


def obey(talk: Talk, message: str) -> None:
    """Runs a command. Errors are printed, and the conversation goes on."""
    found = _COMMAND.fullmatch(message)
    assert found is not None, "it is a command"
    word = found["word"].lower()
    command = COMMANDS.get(_OTHER_WORDS.get(word, word))
    try:
        if command is None:
            raise InvalidInput(_unknown(word))
        command.run(talk, (found["rest"] or "").strip())
    except StokerError as error:
        say_error(error)
    except KeyboardInterrupt:
        say("\n(stopped)")


def _unknown(word: str) -> str:
    close = difflib.get_close_matches(word, COMMANDS, n=1)
    meant = f"did you mean /{close[0]}? " if close else ""
    return f"unknown command /{word}: {meant}/help lists the commands; // begins a text with a slash"


def _help(_talk: Talk, _rest: str) -> None:
    for command in COMMANDS.values():
        say(f"  {command.usage:28}{command.meaning}")
    say('Ctrl-C stops the answer, Ctrl-D leaves. Alt-Enter or """ begins a message of several lines.')


def _clear(talk: Talk, _rest: str) -> None:
    talk.turns.clear()
    say("(started over)")


def _system(talk: Talk, rest: str) -> None:
    if rest:
        talk.turns.system = "" if rest == "-" else rest.removeprefix('"').removesuffix('"')
    say(f"system prompt: {talk.turns.system or 'none'}")


def _set(talk: Talk, rest: str) -> None:
    """Sets and shows a setting. Ollama's forms work too: `/set parameter seed 1`, `/set system …`, `/set verbose`."""
    name, _, value = rest.removeprefix("parameter ").partition(" ")
    match name:
        case "":
            _show_settings(talk)
        case "system":
            _system(talk, value)
        case "markdown" | "nowordwrap" | "wordwrap":
            talk.view.is_markdown = _is_on(value) if name == "markdown" else name == "wordwrap"
            _show_view(talk)
        case "stats" | "verbose" | "quiet":
            talk.view.has_stats = name != "quiet" and _is_on(value)
            _show_view(talk)
        case _:
            own = _parameter(name)
            talk.sampling = dataclasses.replace(talk.sampling, **{own: _value(name, value.strip())})
            say(f"  {own} {_shown(getattr(talk.sampling, own))}")


def _show(talk: Talk, _rest: str) -> None:
    say(f"model: {talk.llm.card.name}, context size {talk.llm.card.context_size}")
    _system(talk, "")
    _show_settings(talk)


def _show_settings(talk: Talk) -> None:
    for name, value in dataclasses.asdict(talk.sampling).items():
        if value is not None:
            say(f"  {name} {_shown(value)}")
    _show_view(talk)


def _show_view(talk: Talk) -> None:
    say(f"  markdown {_on(talk.view.is_markdown)}")
    say(f"  stats {_on(talk.view.has_stats)}")


def _shown(value: object) -> str:
    if value is None:
        return "- (what the model recommends)"
    return ",".join(map(str, cast("tuple[object, ...]", value))) if isinstance(value, tuple) else str(value)


def _on(is_on: bool) -> str:
    return "on" if is_on else "off"


def _is_on(value: str) -> bool:
    if value not in ("on", "off", ""):
        raise InvalidInput(f"must be on or off, not {value!r}")
    return value != "off"


_OTHER_NAMES = {"num_predict": "max_tokens", "temp": "temperature", "repeat_penalty": "repetition_penalty"}


def _parameter(name: str) -> str:
    own = _OTHER_NAMES.get(name, name)
    if own not in _kinds():
        settings = ["markdown", "stats", *_kinds()]
        close = difflib.get_close_matches(own, settings, n=1)
        hint = f"did you mean {close[0]}?" if close else f"settings: {', '.join(settings)}"
        raise InvalidInput(f"unknown setting {name!r}: {hint}")
    return own


def _value(name: str, text: str) -> Any:
    """The value in a text: `-` or nothing resets the setting (None), and commas separate several stop strings."""
    kind = _kinds()[_parameter(name)]
    if text in ("", "-"):
        return None
    if kind is tuple:
        return tuple(text.split(","))
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise InvalidInput(f"{name} must be {wanted}, not {text!r}") from None


def _kinds() -> Mapping[str, Callable[[str], Any]]:
    """The sampling parameters that `/set` can set -> the function that converts text to the parameter's value."""
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
            raise media_refused(kind, talk.llm.card.media_refusal)
        path = Path(rest.strip("\"'")).expanduser().absolute()
        if not path.is_file():
            raise InvalidInput(f"there is no file {path}")
        turns.files.append(TalkFile(kind, str(path)))
    say(f"{plural} of the next message: {', '.join(file.path for file in turns.files if file.kind == kind) or 'none'}")


def _retry(talk: Talk, _rest: str) -> None:
    talk.retry()


def _undo(talk: Talk, _rest: str) -> None:
    question = talk.turns.undo()
    say("there is no message yet" if question is None else f"(removed: {question[:60]})")


def _save(talk: Talk, rest: str) -> None:
    say(f"saved: {saved.save(rest or saved.LAST, talk.turns, talk.model)}")


def _load(talk: Talk, rest: str) -> None:
    talk.turns = saved.load(rest or saved.LAST)
    say(f"({counted(len(talk.turns))}; the conversation is resumed)")


def _tokens(talk: Talk, _rest: str) -> None:
    say(f"{talk.turns.num_tokens} of {talk.llm.card.context_size} tokens, in {counted(len(talk.turns))}")


def _exit(talk: Talk, _rest: str) -> None:
    talk.is_over = True


COMMANDS: Mapping[str, _Command] = {
    "help": _Command(_help, "/help", "show this list"),
    "clear": _Command(_clear, "/clear", "start over; the system prompt stays"),
    "system": _Command(_system, "/system [TEXT]", "show or set the system prompt; - removes it"),
    "set": _Command(_set, "/set [NAME [VALUE]]", "show or set temperature, max_tokens, …, markdown, stats"),
    "show": _Command(_show, "/show", "show the model, the system prompt and the settings"),
    "model": _Command(_model, "/model [NAME]", "show the model, or switch to another one"),
    "image": _Command(_image, "/image [FILE]", "attach an image to the next message; - removes it"),
    "audio": _Command(_audio, "/audio [FILE]", "attach a recording to the next message; - removes it"),
    "file": _Command(_file, "/file [FILE]", "attach a PDF or text file to the next message; - removes it"),
    "retry": _Command(_retry, "/retry", "generate the last answer again"),
    "undo": _Command(_undo, "/undo", "remove the last message and its answer"),
    "save": _Command(_save, "/save [NAME]", "save the conversation"),
    "load": _Command(_load, "/load [NAME]", "resume a saved conversation"),
    "tokens": _Command(_tokens, "/tokens", "show how much of the context is used"),
    "exit": _Command(_exit, "/exit", "leave"),
}
"""Word after the slash -> command, in the order of `/help`."""
_OTHER_WORDS = {"?": "help", "quit": "exit", "bye": "exit", "q": "exit", "new": "clear", "reset": "clear"}
