"""Blocks of KV in an object store, such as S3, for processes on machines that share no folder.

```
    PREFIX/kv/<fingerprint>/model.json    describes the model of the fingerprint, for people
    PREFIX/kv/<fingerprint>/<key>.kv      one block
```

Writes of objects are atomic, so no temporary names are needed. Blocks are never evicted: the owner of the bucket lets
objects expire. No other module uses the library for object stores.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from stoker.cache.arena import Arena
from stoker.cache.block_file import HEADER_BYTES, BadBlockFile, decode_header, encode_header
from stoker.cache.directory import BlockEntry, KeptModel
from stoker.core.tiers import KVBytes
from stoker.errors import ConfigError
from stoker.lazy import lazy_module

if TYPE_CHECKING:
    import obstore
    import obstore.exceptions
    import obstore.store
    from obstore.store import ObjectStore
else:
    obstore = lazy_module("obstore")

_untyped = cast("Any", obstore)
"""Some of its results are partly unknown to type checkers."""
AT_ONCE = 8
"""Number of blocks that are read in parallel: a store has a high latency, but serves many requests at once."""
_URL = re.compile(r"(s3a?|gs|az|azure|abfss?|adl|file)://")
_BLOCK = re.compile(r"kv/([0-9a-f]{64})/([0-9a-f]{32})\.kv")
_MODEL = re.compile(r"kv/([0-9a-f]{64})")
_SLOW = timedelta(seconds=10)
"""Timeout of a request to the store: by then, the KV has long been computed instead."""
_ALLOW_HTTP = ("AWS_ALLOW_HTTP", "GOOGLE_ALLOW_HTTP", "AZURE_ALLOW_HTTP")
"""The library's environment variables that allow a server without TLS."""
_NONE: Mapping[bytes, int] = {}


def is_object_url(where: str) -> bool:
    """Whether this is the URL of an object store, not the path of a folder.

    >>> is_object_url("s3://bucket/prefix"), is_object_url("/var/cache/kv")
    (True, False)
    """
    return _URL.match(where) is not None


class ObjectDirectory:
    """A `BlockPlace` in an object store. One thread at a time reads and writes blocks.

    Args:
        store: the store, including the prefix of all paths.
    """

    search_s = 10.0

    def __init__(self, store: ObjectStore) -> None:
        self.arena = Arena()
        self._store = store
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="stoker-kv-objects")
        self._begun: dict[tuple[bytes, bytes], Future[KVBytes]] = {}
        """Blocks that are being prefetched, by fingerprint and key."""
        self._described: set[bytes] = set()

    @classmethod
    def at(cls, url: str) -> ObjectDirectory:
        """Opens the store of a URL. Credentials come from the environment, as for the store's own tools.

        Raises:
            ConfigError: the URL cannot be used, or the library is not installed.
        """
        options: dict[str, Any] = {"mkdir": True} if url.startswith("file:") else _over_http()
        try:
            return cls(obstore.store.from_url(url, **options))
        except ImportError as error:
            message = "object stores need a library that is not installed: pip install 'stoker[s3]'"
            raise ConfigError(message, key="kv_cache_dir") from error
        except (obstore.exceptions.BaseError, ValueError) as error:
            raise ConfigError(f"{url} cannot be used: {_first_line(error)}", key="kv_cache_dir") from error

    def notes(self, own: Path) -> Path:
        """See `BlockPlace`."""
        return own / "weights.json"

    def free_bytes(self) -> int | None:
        """None: see `BlockPlace`."""
        return None

    def prepare(self) -> None:
        """Checks that the store can be listed.

        Raises:
            OSError: the store cannot be reached, or refuses.
        """
        self.models()

    def look(self) -> None:
        """Checks that the store can be listed.

        Raises:
            OSError: the store cannot be reached, or refuses.
        """
        self.models()

    def write(self, fingerprint: bytes, key: bytes, state: KVBytes) -> int:
        """Writes a block. Returns the size of the object.

        Raises:
            OSError: the store cannot be reached, or refuses.
        """
        content = [encode_header(fingerprint, key, state), memoryview(state).cast("B")]
        with _as_os_errors():
            obstore.put(self._store, _path(fingerprint, key), content, use_multipart=False)
        return sum(map(len, content))

    def begin(self, fingerprint: bytes, keys: Sequence[bytes]) -> None:
        """See `BlockPlace`. Reads the first `AT_ONCE` keys; cancels reads of blocks announced before."""
        wanted = [(fingerprint, key) for key in keys[:AT_ONCE]]
        for other in self._begun.keys() - set(wanted):
            self._begun.pop(other).cancel()
        for each in wanted:
            if each not in self._begun:
                self._begun[each] = self._pool.submit(self._get, *each)

    def read(self, fingerprint: bytes, key: bytes) -> KVBytes:
        """Reads a block.

        Raises:
            FileNotFoundError: the block is not in the store (any more).
            BadBlockFile: the object is damaged, or is not this block.
            OSError: the store cannot be reached, or refuses.
        """
        begun = self._begun.pop((fingerprint, key), None)
        return self._get(fingerprint, key) if begun is None else begun.result()

    def note_use(self, fingerprint: bytes, key: bytes, used_at: float) -> None:
        """Does nothing: the expiry of an object depends on its time of writing."""

    def remove(self, fingerprint: bytes, key: bytes) -> None:
        """Removes a block, if it exists and the store permits."""
        self._delete(_path(fingerprint, key))

    def describe(self, fingerprint: bytes, model: KeptModel) -> None:
        """Writes `model.json`, which describes the model of a fingerprint, once per process.

        Raises:
            OSError: the store cannot be reached, or refuses.
        """
        if fingerprint not in self._described:
            with _as_os_errors():
                obstore.put(self._store, _note(fingerprint.hex()), msgspec.json.format(msgspec.json.encode(model)))
            self._described.add(fingerprint)

    def described(self, fingerprint: str) -> KeptModel:
        """The model of a fingerprint; with `unknown` values if `model.json` is missing or cannot be read."""
        try:
            with _as_os_errors():
                note = bytes(obstore.get(self._store, _note(fingerprint)).bytes())
            return msgspec.json.decode(note, type=KeptModel)
        except (OSError, msgspec.DecodeError):
            return KeptModel("unknown", "unknown")

    def models(self) -> list[str]:
        """The fingerprints of all models with stored objects.

        Raises:
            OSError: the store cannot be reached, or refuses.
        """
        with _as_os_errors():
            prefixes = _untyped.list_with_delimiter(self._store, prefix="kv")["common_prefixes"]
        found = [_MODEL.fullmatch(prefix.rstrip("/")) for prefix in prefixes]
        return sorted(match[1] for match in found if match)

    def state(self, fingerprint: bytes) -> int | None:
        """None: an object store does not tell whether anything has changed."""
        return None

    def keys(self, fingerprint: bytes, known: Mapping[bytes, int] = _NONE) -> dict[bytes, int]:
        """The keys of all blocks of one model, with their objects' sizes; `known` if the store does not answer."""
        try:
            return {entry.key: entry.num_bytes for entry in self.blocks(fingerprint.hex())}
        except OSError:
            return dict(known)

    def latest(self, fingerprint: bytes, limit_bytes: int) -> list[bytes]:
        """The keys of the latest written blocks of one model, latest first, up to a total size of `limit_bytes`."""
        if not limit_bytes:
            return []
        try:
            blocks = sorted(self.blocks(fingerprint.hex()), key=lambda entry: entry.used_at, reverse=True)
        except OSError:
            return []
        sizes = accumulate(entry.num_bytes for entry in blocks)
        return [entry.key for entry, size in zip(blocks, sizes, strict=True) if size <= limit_bytes]

    def blocks(self, fingerprint: str) -> Iterator[BlockEntry]:
        """All blocks of one model.

        Raises:
            OSError: the store cannot be reached, or refuses.
        """
        with _as_os_errors():
            for page in _untyped.list(self._store, prefix=f"kv/{fingerprint}"):
                for each in page:
                    if _BLOCK.fullmatch(each["path"]):
                        folder, _, name = each["path"].rpartition("/")
                        yield BlockEntry(folder, name, each["size"], each["last_modified"].timestamp())

    def shrink(self, limit_bytes: int) -> list[BlockEntry]:
        """Removes nothing: objects expire by a rule of the bucket."""
        return []

    def sweep(self) -> Iterator[tuple[Path, str]]:
        """Checks nothing: reading the header of every object would cost more than a damaged block does."""
        return iter(())

    def check(self, fingerprint: str) -> Iterator[tuple[BlockEntry, str]]:
        """Reads all blocks of one model, removes damaged ones; yields each object with its fault or an empty string."""
        for entry in list(self.blocks(fingerprint)):
            fault = ""
            try:
                self._get(bytes.fromhex(fingerprint), entry.key)
            except FileNotFoundError:
                continue
            except (BadBlockFile, OSError) as error:
                fault = str(error)
                self._delete(f"{entry.folder}/{entry.name}")
            yield entry, fault

    def clear(self, fingerprint: str) -> int:
        """Removes all blocks of one model; returns their size in bytes.

        Raises:
            OSError: the store cannot be reached, or refuses.
        """
        entries = list(self.blocks(fingerprint))
        with _as_os_errors():
            obstore.delete(self._store, [f"{entry.folder}/{entry.name}" for entry in entries])
        self._delete(_note(fingerprint))
        return sum(entry.num_bytes for entry in entries)

    def close(self) -> None:
        """See `BlockPlace`."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _get(self, fingerprint: bytes, key: bytes) -> KVBytes:
        with _as_os_errors():
            content = memoryview(obstore.get(self._store, _path(fingerprint, key)).bytes())
        header = decode_header(content[:HEADER_BYTES], len(content))
        header.check_names(fingerprint, key)
        state = self.arena.take(header.num_bytes, at_once=False)
        state[:] = content[header.begin : header.begin + header.num_bytes]
        header.check_content(state)
        return state.toreadonly()

    def _delete(self, path: str) -> None:
        with suppress(OSError), _as_os_errors():
            obstore.delete(self._store, path)


def _over_http() -> dict[str, Any]:
    """Timeouts of every request. Client options replace those of the environment, so `allow_http` is passed on here."""
    allow_http = any(os.environ.get(name, "").lower() in ("1", "true") for name in _ALLOW_HTTP)
    return {
        "client_options": {"timeout": _SLOW, "connect_timeout": _SLOW, "allow_http": allow_http},
        "retry_config": {"max_retries": 3, "retry_timeout": _SLOW},
    }


def _path(fingerprint: bytes, key: bytes) -> str:
    return f"kv/{fingerprint.hex()}/{key.hex()}.kv"


def _note(fingerprint: str) -> str:
    return f"kv/{fingerprint}/model.json"


@contextmanager
def _as_os_errors() -> Generator[None]:
    """Raises OSError for every error of the store; FileNotFoundError stays as it is."""
    try:
        yield
    except obstore.exceptions.BaseError as error:
        raise OSError(_first_line(error)) from error


def _first_line(error: BaseException) -> str:
    """The message without the library's dump of the error, which follows in further lines."""
    return str(error).partition("\n")[0].strip() or type(error).__name__
