"""The access log: one line per request, as text or as JSON. It never contains a query string, prompt, answer or key."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import msgspec
from starlette.types import Scope

from stoker.server.observe.account import Account

access_log = logging.getLogger("stoker.server.access")

_MAX_PATH = 200


@contextmanager
def bare_lines(*, is_json: bool) -> Generator[None]:
    """Inside of the context, JSON lines go to stderr without the log's prefix, which log collectors cannot parse."""
    if not is_json:
        yield
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    access_log.addHandler(handler)
    access_log.propagate = False
    try:
        yield
    finally:
        access_log.removeHandler(handler)
        access_log.propagate = True


def log_exchange(
    scope: Scope, status: int, duration_s: float, request_id: str, account: Account, *, is_json: bool
) -> None:
    """Logs a request whose response has ended, at level info."""
    if not access_log.isEnabledFor(logging.INFO):
        return
    method, path = scope["method"], scope["path"][:_MAX_PATH]
    if not path.isprintable():  # a line break could forge a log line
        path = ascii(path)
    if not is_json:
        access_log.info("%s %s %d %.0fms id=%s%s", method, path, status, 1e3 * duration_s, request_id, _text(account))
        return
    about = {"time": time.time(), "request_id": request_id, "method": method, "path": path, "status": status}
    about |= {"duration_s": round(duration_s, 6), "client": _address(scope), **_fields(account)}
    access_log.info("%s", msgspec.json.encode(about).decode())


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _text(account: Account) -> str:
    return "".join(f" {name}={_word(value)}" for name, value in _fields(account).items())


def _word(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _fields(account: Account) -> dict[str, Any]:
    """The fields of an account that are known; those about tokens only for requests to a model."""
    known: dict[str, Any] = {"key": account.key_name} if account.key_name else {}
    if account.reply_id and not account.own_id:
        known["reply_id"] = account.reply_id
    if not account.model:
        return known
    known |= {"model": account.model, "prompt_tokens": account.prompt_tokens, "cached_tokens": account.cached_tokens}
    known |= {"completion_tokens": account.completion_tokens, "finish_reasons": account.finish_reasons}
    if "length" in account.finish_reasons:
        known["max_tokens"] = account.max_tokens
    if account.relaxed:
        known["relaxed"] = list(account.relaxed)
    return known if account.ttft_s is None else {**known, "ttft_s": round(account.ttft_s, 6)}
