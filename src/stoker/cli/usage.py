"""What a wrong command line is answered with: one line, in the same words as every other error."""

from __future__ import annotations

import re
from typing import Any

from stoker.cli.report import USAGE, say, say_failure

_INVALID = re.compile(r"Invalid value for '?(?P<what>[^:]*?)'?: (?P<why>.*)", re.DOTALL)
_REASONS = (
    (re.compile(r"Input should be a valid integer\b.*", re.DOTALL), "must be a whole number"),
    (re.compile(r"Input should be a valid number\b.*", re.DOTALL), "must be a number"),
    (re.compile(r"Value error, (?P<given>'.*?') is not one of (?P<choices>.*?)\.?$", re.DOTALL), ""),
)


def say_usage_error(error: Any) -> int:
    """Says what is wrong with the command line, and where to look; a missing command shows the help instead.

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
    """The message without the words of the libraries below.

    >>> plain("Invalid value for '--top-k': Input should be a valid integer, unable to parse string as an integer")
    '--top-k must be a whole number'
    >>> plain("Invalid value for '--kv-type': Value error, 'q4' is not one of 'f16', 'q8'.")
    "--kv-type must be one of f16, q8, not 'q4'"
    >>> plain("Missing argument 'MODEL'.")
    'missing argument MODEL.'
    """
    found = _INVALID.fullmatch(message)
    if found is None:
        return _lowered(message.replace("'MODEL'", "MODEL"))
    why = found["why"]
    for pattern, words in _REASONS:
        if reason := pattern.fullmatch(why):
            return f"{found['what']} {words or _one_of(reason['choices'], reason['given'])}"
    return f"{found['what']}: {_lowered(why)}"


def _one_of(choices: str, given: str) -> str:
    return f"must be one of {choices.replace(chr(39), '')}, not {given}"


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]
