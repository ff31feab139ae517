"""Runs the command line, and turns every error into one line on stderr and a documented exit code."""

from __future__ import annotations

import re
import sys
from typing import Any

from stoker.cli.answer import flush
from stoker.cli.command import UsageError
from stoker.cli.commands import command_line
from stoker.cli.report import ERROR, USAGE, exit_code, say, say_error, say_failure
from stoker.errors import StokerError, reason_of

_INVALID = re.compile(r"Invalid value for '?(?P<what>[^:']*)'?(?: / '[^']*')*: (?P<why>.*)", re.DOTALL)
_EXTRA = re.compile(r"Got unexpected extra argument\S* \((?P<words>.*)\)\.?", re.DOTALL)
_QUOTED_NAME = re.compile(r"'([A-Z]+)'")
_REASONS = (
    (re.compile(r"Input should be a valid integer\b.*", re.DOTALL), "must be a whole number"),
    (re.compile(r"Input should be a valid number\b.*", re.DOTALL), "must be a number"),
    (re.compile(r"Input should be greater than or equal to (?P<bound>.*)"), "must be at least"),
    (re.compile(r"Input should be less than or equal to (?P<bound>.*)"), "must be at most"),
    (re.compile(r"Value error, (?P<given>'.*?') is not one of (?P<choices>.*?)\.?$", re.DOTALL), ""),
)


def run() -> None:
    """Runs the command that the arguments of this process name.

    Raises:
        SystemExit: always, with a documented code.
    """
    try:
        try:
            code = command_line(sys.argv[1:])(prog_name="stoker", standalone_mode=False)
        finally:
            flush()
        raise SystemExit(code or 0)
    except UsageError as error:
        raise SystemExit(_say_usage_error(error)) from None
    except StokerError as error:
        say_error(error)
        raise SystemExit(exit_code(error)) from None
    except OSError as error:
        # The error does not tell which operation failed; the traceback does (`-v`).
        named = "" if error.filename is None else f"{error.filename}: "
        refused = StokerError(f"operating system error: {named}{reason_of(error)}")
        refused.__cause__ = error
        say_error(refused)
        raise SystemExit(ERROR) from None


def _say_usage_error(error: Any) -> int:
    """Prints what is wrong with the command line, and which help to read. For a missing command, prints that help.

    Args:
        error: Click's `UsageError`.

    Returns:
        The exit code.
    """
    message = str(error.format_message())
    if type(error).__name__ == "NoArgsIsHelpError":
        say(message)
        return USAGE
    path = error.ctx.command_path if error.ctx is not None else "stoker"
    say_failure(f"{plain(message).rstrip('.')} (see `{path} -h`)")
    return USAGE


def plain(message: str) -> str:
    """The message of a usage error, without the jargon of the libraries that raise it.

    >>> plain("Invalid value for '--top-k': Input should be a valid integer, unable to parse string as an integer")
    '--top-k must be a whole number'
    >>> plain("Invalid value for '--kv-type': Value error, 'q4' is not one of 'f16', 'q8'.")
    "--kv-type must be one of f16, q8, not 'q4'"
    >>> plain("Invalid value for '--lines' / '-n': Input should be greater than or equal to 1")
    '--lines must be at least 1'
    >>> plain("Missing argument 'MODEL'.")
    'missing argument MODEL.'
    >>> plain("Got unexpected extra argument(s) (three colors)")
    'unexpected arguments: three colors (put an argument of several words in quotes)'
    """
    if extra := _EXTRA.fullmatch(message):
        return f"unexpected arguments: {extra['words']} (put an argument of several words in quotes)"
    found = _INVALID.fullmatch(message)
    if found is None:
        return _lowered(_QUOTED_NAME.sub(r"\1", message))
    why = found["why"]
    for pattern, words in _REASONS:
        if reason := pattern.fullmatch(why):
            given = reason.groupdict()
            said = _one_of(given["choices"], given["given"]) if "choices" in given else words
            return " ".join(filter(None, (found["what"], said, given.get("bound"))))
    return f"{found['what']}: {_lowered(why)}"


def _one_of(choices: str, given: str) -> str:
    return f"must be one of {choices.replace(chr(39), '')}, not {given}"


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]
