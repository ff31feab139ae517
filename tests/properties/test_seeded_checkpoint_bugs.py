"""What `test_checkpoint_invariances` says is worth something only if it notices bugs: each of these must be caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.backends.native import kv_pages
from stoker.backends.native.kv_pages import KVPages
from stoker.backends.native.pages import PageLedger
from stoker.core.kv_cache import KVCache
from stoker.core.prefix_tree import PrefixTree
from stoker.errors import BackendError
from tests.properties.test_checkpoint_invariances import MODEL, Pool, check_answers
from tests.tiny_models import write_tiny_model

Patch = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Patch] = {}


def bug(patch: Patch) -> Patch:
    BUGS[patch.__name__] = patch
    return patch


@bug
def gives_pages_back_that_are_still_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_pages, "kept_positions", lambda window: window - 40)


@bug
def keeps_nothing_for_drafts_to_be_cut_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_pages, "kept_positions", lambda window: window - 32)


@bug
def copies_from_the_middle_of_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefixTree, "match_end", PrefixTree.match)


@bug
def takes_over_what_a_conversation_has_parted_from(monkeypatch: pytest.MonkeyPatch) -> None:
    original = KVCache._find_whole

    def find(self: KVCache, entries, limit, key):
        found = original(self, entries, limit, key)
        return replace(found, length=found.length + 1) if found.length and found.length < limit else found

    monkeypatch.setattr(KVCache, "_find_whole", find)


@bug
def forgets_the_checkpoints_that_the_backend_was_to_make(monkeypatch: pytest.MonkeyPatch) -> None:
    original = KVCache.leave_checkpoint

    def leave(self: KVCache, slot: int) -> None:
        num_ops = len(self._ops)
        original(self, slot)
        del self._ops[num_ops:]

    monkeypatch.setattr(KVCache, "leave_checkpoint", leave)


@bug
def puts_back_the_wrong_window(monkeypatch: pytest.MonkeyPatch) -> None:
    original = KVPages.import_

    def put_back(self: KVPages, decoders, slot, start, end, data, *, has_windows=True):
        original(self, decoders, slot, start, end, memoryview(bytes(len(data))), has_windows=has_windows)

    monkeypatch.setattr(KVPages, "import_", put_back)


@bug
def loses_pages_when_a_slot_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    original = PageLedger._release
    monkeypatch.setattr(PageLedger, "_release", lambda self, pages: original(self, list(pages)[1:]))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "m.gguf", MODEL)


@pytest.mark.parametrize("name", list(BUGS))
def test_a_planted_bug_is_caught(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)
    pool = Pool(path)
    try:
        assert is_caught(pool)
    finally:
        pool.close()


def is_caught(pool: Pool) -> bool:
    try:
        for seed in range(30):
            check_answers(pool, pool.backends[seed % len(pool.backends)], seed)
    except (AssertionError, BackendError, ValueError):
        return True
    return False
