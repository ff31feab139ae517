"""Messages on stderr (notes, errors in one line, log lines) and exit codes. `cli.answer` writes answers to stdout."""

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
    """The exit code for an error."""
    if isinstance(error, InvalidInput | ConfigError):
        return USAGE
    return MODEL if isinstance(error, ModelError | ModelNotLoaded) else ERROR


def say(text: str) -> None:
    """Prints a message on stderr, apart from answers on stdout. On a terminal, long lines are wrapped between words."""
    print(_wrapped(text), file=sys.stderr, flush=True)


def _wrapped(text: str) -> str:
    if not sys.stderr.isatty():
        return text
    try:
        width = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # the terminal does not report its size
        return text
    if width == 0:  # a terminal without a size, such as one that a program emulates
        return text
    return "\n".join(
        textwrap.fill(line, max(width, 20), break_long_words=False, break_on_hyphens=False, replace_whitespace=False)
        for line in text.split("\n")
    )


def say_error(error: StokerError) -> None:
    """Prints an error as one line; at log level info or debug (`-v`), the traceback precedes it."""
    if logging.getLogger().isEnabledFor(logging.INFO):
        traceback.print_exception(error)
    say_failure(error.message)


def say_failure(message: str) -> None:
    """Prints the line with which every command reports why it failed: `error: …`."""
    say(f"{painted('error:', _RED)} {' '.join(message.split())}")


def painted(text: str, color: str) -> str:
    """The text with ANSI codes for a color, if stderr is a terminal that shows colors and NO_COLOR is not set."""
    is_wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and sys.stderr.isatty()
    return f"\x1b[{color}m{text}\x1b[0m" if is_wanted else text


def set_up_logging(level: str | None) -> None:
    """Sends log lines to stderr. `STOKER_LOG_LEVEL` is set, so that child processes log at the same level.

    Args:
        level: minimum level, one of `LOG_LEVELS`. None = that of `STOKER_LOG_LEVEL`, else `warning`.

    Raises:
        ConfigError: `STOKER_LOG_LEVEL` is not one of `LOG_LEVELS`.
    """
    chosen = level or os.environ.get("STOKER_LOG_LEVEL") or "warning"
    if chosen.lower() not in LOG_LEVELS:
        raise ConfigError(f"STOKER_LOG_LEVEL must be one of {', '.join(LOG_LEVELS)}, not {chosen!r}")
    os.environ["STOKER_LOG_LEVEL"] = chosen
    logging.basicConfig(
        level=chosen.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
