"""The prefix cache in an object store: in memory, in a folder, and in a real server of S3's protocol."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.cache.block_file import BadBlockFile
from stoker.cache.directory import KeptModel
from stoker.cache.objects import AT_ONCE, ObjectDirectory
from stoker.cache.place import open_place
from stoker.cache.store import KVStore
from stoker.errors import ConfigError
from tests.ports import free_port
from tests.waiting import BOUND_S, wait_until

obstore: Any = pytest.importorskip("obstore", reason="pip install 'stoker[s3]'")
stores: Any = pytest.importorskip("obstore.store")

OURS, FOREIGN = b"1" * 32, b"2" * 32
KEYS = [bytes([index]) * 16 for index in range(2 * AT_ONCE)]
MODEL = KeptModel("a model", "a format")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a bucket; the environment says where its server is, and who asks."""
    pytest.importorskip("moto", reason="a development dependency")
    port, log = free_port(), tmp_path_factory.mktemp("s3") / "log"
    line = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    endpoint = f"http://127.0.0.1:{port}"
    given = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }
    with log.open("wb") as output, pytest.MonkeyPatch.context() as patch:
        server = subprocess.Popen(line, stdout=output, stderr=output)
        try:
            wait_until(lambda: is_up(endpoint))
            httpx.put(f"{endpoint}/bucket", trust_env=False, timeout=BOUND_S).raise_for_status()
            for name, value in given.items():
                patch.setenv(name, value)
            yield "s3://bucket"
        finally:
            server.kill()
            server.wait(BOUND_S)


def is_up(endpoint: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(endpoint, trust_env=False, timeout=BOUND_S).is_success
    return False


@pytest.fixture(params=["memory", "folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectDirectory]:
    if request.param == "memory":
        found = ObjectDirectory(stores.MemoryStore())
    elif request.param == "folder":
        found = ObjectDirectory.at(f"file://{tmp_path}/objects")
    else:
        found = ObjectDirectory.at(f"{request.getfixturevalue('s3')}/{tmp_path.name}")
    yield found
    found.close()


def content(index: int, num_bytes: int = 100_000) -> bytes:
    return bytes([index]) * num_bytes


def test_what_was_written_is_read(place: ObjectDirectory) -> None:
    place.prepare()
    assert place.models() == []
    for index in range(3):
        assert place.write(OURS, KEYS[index], memoryview(content(index))) > 100_000
    place.write(FOREIGN, KEYS[0], content(9))
    place.describe(OURS, MODEL)
    assert [bytes(place.read(OURS, key)) for key in KEYS[:3]] == [content(index) for index in range(3)]
    assert bytes(place.read(FOREIGN, KEYS[0])) == content(9)
    assert place.keys(OURS).keys() == set(KEYS[:3])
    assert place.models() == [OURS.hex(), FOREIGN.hex()]
    assert place.described(OURS.hex()) == MODEL
    assert place.described(FOREIGN.hex()).name == "unknown"
    with pytest.raises(FileNotFoundError):
        place.read(OURS, KEYS[3])


def test_the_latest_are_known_as_many_as_fit(place: ObjectDirectory) -> None:
    size = place.write(OURS, KEYS[0], content(0))
    wait_until(lambda: time.time() > next(iter(place.blocks(OURS.hex()))).used_at + 1.0)  # times are whole seconds
    place.write(OURS, KEYS[1], content(1))
    assert place.latest(OURS, size) == [KEYS[1]]
    assert place.latest(OURS, 2 * size) == [KEYS[1], KEYS[0]]


def test_damage_is_found_and_removed(place: ObjectDirectory) -> None:
    store: Any = place._store  # pyright: ignore[reportPrivateUsage]
    for index in range(3):
        place.write(OURS, KEYS[index], content(index))
    whole = bytes(obstore.get(store, f"kv/{OURS.hex()}/{KEYS[0].hex()}.kv").bytes())
    obstore.put(store, f"kv/{OURS.hex()}/{KEYS[0].hex()}.kv", whole[:-1] + b"x")
    obstore.put(store, f"kv/{OURS.hex()}/{KEYS[1].hex()}.kv", whole)
    obstore.put(store, f"kv/{OURS.hex()}/notes.txt", b"not ours")
    for key in KEYS[:2]:
        with pytest.raises(BadBlockFile):
            place.read(OURS, key)
    assert sum(bool(fault) for _, fault in place.check(OURS.hex())) == 2
    assert place.keys(OURS).keys() == {KEYS[2]}
    assert place.clear(OURS.hex()) > 100_000
    assert not place.keys(OURS)
    assert bytes(obstore.get(store, f"kv/{OURS.hex()}/notes.txt").bytes()) == b"not ours"


def tiers(place: ObjectDirectory) -> KVStore:
    store = KVStore(16 * 2**20)
    store.open_disk(place, identify=lambda: OURS, model=MODEL, limit_bytes=2**60)
    return store


def test_other_process_finds_what_one_has_computed(place: ObjectDirectory) -> None:
    one = tiers(place)
    one.touch(KEYS)  # a request came: what is put now is kept
    for index, key in enumerate(KEYS):
        one.put(key, content(index))
    assert one.close()
    other = tiers(ObjectDirectory(place._store))  # pyright: ignore[reportPrivateUsage]
    wait_until(lambda: all(map(other.holds, KEYS)))
    assert not other.is_ready(KEYS[0])
    has_arrived = threading.Event()
    other.on_arrival(has_arrived.set)
    other.fetch(KEYS)
    assert has_arrived.wait(BOUND_S)
    taken = [other.take(key, 32) for key in KEYS]
    assert [bytes(state) for state in taken if state is not None] == [content(index) for index in range(len(KEYS))]
    assert other.counters().disk_hit_blocks == len(KEYS)
    assert other.close()


class SlowStore(ObjectDirectory):
    """Answers no reader until as many blocks are asked for as may be at once."""

    def __init__(self) -> None:
        super().__init__(stores.MemoryStore())
        self.together = threading.Barrier(AT_ONCE)

    def _get(self, fingerprint: bytes, key: bytes) -> Any:
        self.together.wait(BOUND_S)
        return super()._get(fingerprint, key)


def test_several_blocks_are_on_their_way_at_once() -> None:
    place = SlowStore()
    for index, key in enumerate(KEYS):
        place.write(OURS, key, content(index))
    for begin in range(0, len(KEYS), AT_ONCE):
        wanted = KEYS[begin : begin + AT_ONCE]
        place.begin(OURS, wanted)
        assert [bytes(place.read(OURS, key))[0] for key in wanted] == [*range(begin, begin + AT_ONCE)]
    place.begin(OURS, KEYS[:AT_ONCE])
    place.begin(OURS, [])
    place.close()


def test_store_that_cannot_be_reached_costs_one_warning(
    s3: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    place = ObjectDirectory.at(f"{s3}/prefix")
    with pytest.raises(OSError, match=r"."):
        place.prepare()
    with caplog.at_level(logging.WARNING):
        store = tiers(place)
        store.put(KEYS[0], content(0))
        wait_until(lambda: bool(caplog.messages))
        assert store.close()
    assert len(caplog.messages) == 1
    assert "cannot be used" in caplog.messages[0]


def test_place_that_cannot_be_used_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no object store that is known"):
        open_place("s4://bucket")
    with pytest.raises(ConfigError, match="cannot be used"):
        open_place("s3:///")
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ConfigError, match=r"pip install 'stoker\[s3\]'"):
        open_place("s3://bucket/prefix")


def test_library_is_not_imported_for_a_folder() -> None:
    code = "import sys, stoker.cache.place as p; p.open_place('/tmp/x'); print('obstore' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=BOUND_S, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "False"
