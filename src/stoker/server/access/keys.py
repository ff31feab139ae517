"""API keys: reads and names them, and finds the key that a client sends. `access.control` refuses requests."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING

from stoker.errors import ConfigError, reason_of
from stoker.server.config import ServerConfig, listed

if TYPE_CHECKING:
    from starlette.datastructures import Headers

logger = logging.getLogger(__name__)

_BEARER = "bearer "
_HEADERS = ("x-api-key", "api-key")
"""Headers with a key alone, of clients of Anthropic's API and of Azure OpenAI."""
_MAX_FILE_BYTES = 2**20
_LOOK_EVERY_S = 1.0
"""Minimum time between two checks whether the key file has changed."""
_READ_ONCE = (0, 0, 0)
"""State of a file that is not regular, such as a pipe. It is read once: later it is empty, or has no writer."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One API key. Only its digest is kept, so comparisons take constant time and no traceback shows the key."""

    name: str
    """Name of the key for metrics, logs and fairness; several keys may share one."""
    digest: bytes = field(repr=False)
    owner: str = field(repr=False)
    """Owner of everything that the server stores for the key's clients; all keys with the same given name share one.
    The owner of a key without a name is its digest, because its number changes with the lines of the file."""
    is_admin: bool = False


class ApiKeys:
    """All API keys of a server. A key file is read again when it changes; an invalid one leaves the keys unchanged.

    A file that is not regular, such as a pipe, is read only once, so create one `ApiKeys` per server.

    Args:
        config: `api_key`, `api_key_file` and `admin_key` are used.
        clock: returns a time in seconds; only differences are used.

    Raises:
        ConfigError: the file cannot be read, or contains no key.
    """

    def __init__(self, config: ServerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._listed = [_parse(text, number) for number, text in enumerate(listed(config.api_key), 1)]
        self._admin = [_nameless("admin", config.admin_key, is_admin=True)] if config.admin_key else []
        self._path = config.api_key_file
        self._seen = _state(self._path)
        self._looked_s = clock()
        self._filed = self._read_file() if self._path else []
        self.has_clients = bool(self._listed or self._filed)
        """Whether clients must send an API key."""
        self.has_admin = bool(config.admin_key)
        """Whether requests that change the server's state need the admin key."""

    def match(self, headers: Headers) -> ApiKey | None:
        """The key that a request sends, the admin key first; None if it sends no known key.

        Every sent text is compared with every key, so the time does not tell which one matched.
        """
        self._look_again()
        keys = (*self._listed, *self._filed, *self._admin)
        digests = [_digest(text) for sent in sent_keys(headers) for text in _readings(sent)]
        found = [key for digest in digests for key in keys if hmac.compare_digest(key.digest, digest)]
        return max(found, key=lambda key: key.is_admin, default=None)

    def _look_again(self) -> None:
        now = self._clock()
        if not self._path or now - self._looked_s < _LOOK_EVERY_S:
            return
        self._looked_s = now
        state = _state(self._path)
        if state in (self._seen, _READ_ONCE):
            return
        self._seen = state
        try:
            self._filed = self._read_file()
        except ConfigError as error:
            logger.warning("the API keys stay as they were: %s", error)
        else:
            logger.info("the API keys were read again: there are %d in the file", len(self._filed))

    def _read_file(self) -> list[ApiKey]:
        return [_parse(text, number) for number, text in enumerate(_read(self._path), len(self._listed) + 1)]


def sent_keys(headers: Headers) -> list[str]:
    """The texts that a request sends as keys: in `Authorization: Bearer`, in `x-api-key` and in `api-key`.

    A program with clients of several APIs may send several headers, of which one is for this server.
    """
    authorization = headers.get("authorization", "")
    is_bearer = authorization[: len(_BEARER)].lower() == _BEARER
    sent = (authorization[len(_BEARER) :] if is_bearer else "", *(headers.get(name, "") for name in _HEADERS))
    return [text.strip() for text in sent if text.strip()]


def _state(path: str) -> tuple[int, int, int] | None:
    """Inode, time of change and size, which differ after a file was written or replaced; None if there is no file."""
    try:
        status = Path(path).expanduser().stat()
    except (OSError, ValueError):
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size) if S_ISREG(status.st_mode) else _READ_ONCE


def _readings(sent: str) -> list[str]:
    """A header's text as Starlette decodes it (Latin-1), and as UTF-8, which many clients send."""
    try:
        return list(dict.fromkeys((sent, sent.encode("latin-1").decode())))
    except UnicodeError:
        return [sent]


def _parse(text: str, number: int) -> ApiKey:
    name, colon, key = text.partition(":")
    if colon and not (name.strip() and key.strip()):
        raise ConfigError(f"API key number {number} must look like KEY or NAME:KEY", key="api_key")
    if not colon:
        return _nameless(f"key-{number}", text)
    return ApiKey(name.strip(), _digest(key.strip()), owner=name.strip())


def _nameless(label: str, key: str, *, is_admin: bool = False) -> ApiKey:
    digest = _digest(key)
    return ApiKey(label, digest, owner=digest.hex(), is_admin=is_admin)


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogatepass")).digest()


def _read(path: str) -> Iterable[str]:
    try:
        with Path(path).expanduser().open(encoding="utf-8") as file:
            lines = file.read(_MAX_FILE_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the API keys in {path} cannot be read: {reason_of(error)}", key="api_key_file") from error
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise ConfigError(f"{path} has no API key in it", key="api_key_file")
    return keys
