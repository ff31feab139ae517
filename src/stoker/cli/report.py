"""What the command line says about itself on stderr: errors in one line, exit codes, log lines."""

from __future__ import annotations

import logging
import os
import sys
import textwrap
import traceback

from stoker.errors import ConfigError, InvalidInput, ModelError, ModelNotLoaded, StokerError

LOG_LEVELS = ("debug", "info", "warning", "error")

_RED = "31"
OK, ERROR, USAGE, MODEL, INTERRUPTED = 0, 1, 2, 3, 130

EXIT_CODES = (
    "Exit codes: 0 done, 1 error, 2 usage (the command line, a setting or the prompt cannot be used), "
    "3 model (missing, not downloadable, damaged or not supported), 130 interrupted."
)


def exit_code(error: StokerError) -> int:
    """The exit code that stands for an error."""
    if isinstance(error, InvalidInput | ConfigError):
        return USAGE
    return MODEL if isinstance(error, ModelError | ModelNotLoaded) else ERROR


def say(text: str) -> None:
    """One line to the user, never mixed into the answer on stdout; a terminal gets it broken between words."""
    print(_wrapped(text), file=sys.stderr, flush=True)


def _wrapped(text: str) -> str:
    if not sys.stderr.isatty():
        return text
    try:
        width = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # it does not tell its size
        return text
    if width == 0:  # nor does this one, such as a terminal of a program
        return text
    return "\n".join(
        textwrap.fill(line, max(width, 20), break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
        for line in text.split("\n")
    )


def say_error(error: StokerError) -> None:
    """One clear line; the traceback only for who asked for more with `-v`."""
    if logging.getLogger().isEnabledFor(logging.INFO):
        traceback.print_exception(error)
    say_failure(error.message)


def say_failure(message: str) -> None:
    """The one line in which every command says why it failed."""
    say(f"{painted('error:', _RED)} {' '.join(message.split())}")


def painted(text: str, color: str) -> str:
    """The text in a color of ANSI terminals, if stderr is one and the user has nothing against colors (NO_COLOR)."""
    is_wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and sys.stderr.isatty()
    return f"\x1b[{color}m{text}\x1b[0m" if is_wanted else text


def set_up_logging(level: str | None) -> None:
    """Log lines go to stderr, those of child processes too.

    Args:
        level: not given = `STOKER_LOG_LEVEL`, else warnings and errors only.

    Raises:
        ConfigError: the environment names no such level.
    """
    chosen = level or os.environ.get("STOKER_LOG_LEVEL") or "warning"
    if chosen.lower() not in LOG_LEVELS:
        raise ConfigError(f"STOKER_LOG_LEVEL must be one of {', '.join(LOG_LEVELS)}, not {chosen!r}")
    os.environ["STOKER_LOG_LEVEL"] = chosen
    logging.basicConfig(
        level=chosen.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
