"""Logs unexpected exceptions: type and stack, but not the message, which may quote a prompt or an answer."""

from __future__ import annotations

import logging
import traceback


def log_bug(logger: logging.Logger, failed: str, error: BaseException) -> None:
    """Logs an unexpected exception.

    Args:
        logger: receives one error.
        failed: what ended with the exception, as the subject of a sentence.
        error: the exception.
    """
    stack = "".join(traceback.format_tb(error.__traceback__))
    logger.error("%s failed: %s\n%s", failed, type(error).__name__, stack)
