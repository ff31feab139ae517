"""With images among the entries the output still depends on the request alone; planted bugs must be caught."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.backends.scripted import ScriptedBackend, scripted_info
from stoker.cache.store import KVStore
from stoker.core import media, step_plan
from stoker.core.batch import Batch, Chunk
from stoker.core.drafter import Drafter
from stoker.core.media import PlacedSpan, Span
from stoker.core.media_rows import MediaRows
from stoker.core.request import Request
from stoker.core.sequence import FinishReason, Sequence
from tests import harness
from tests.brief import examples
from tests.harness import ALL_TRAITS, Loop, crowded_clock, make_request

CONTEXT = 80
Images = dict[bytes, list[float]]


def random_images(rng: random.Random) -> list[tuple[Span, list[float]]]:
    """Some of them have rows in common, so that an entry must not be taken for its content."""
    found: list[tuple[Span, list[float]]] = []
    for index in range(4):
        length = rng.choice([1, 3, 8])
        rows = [float(rng.randrange(3)) for _ in range(length)]
        found.append((Span(b"image %d" % index, length, is_whole=rng.random() < 0.5), rows))
    return found


def random_request(rng: random.Random, index: int, images: list[Span], stems: list[list[int]]) -> Request:
    entries: list[int] = list(rng.choice(stems))
    spans: list[PlacedSpan] = []
    for _ in range(rng.randrange(3)):
        span = rng.choice(images)
        spans.append(PlacedSpan(len(entries), span))
        entries += span.entries()
        entries += [rng.randrange(250) for _ in range(rng.choice([0, 1, 5]))]
    return make_request(
        f"r{index}",
        entries or [1],
        max_tokens=rng.randrange(1, 20),
        spans=tuple(spans),
        priority=rng.choice([0, 0, 1]),
        client_key=rng.choice("abc"),
        cache_prompt=rng.random() < 0.9,
    )


def alone(request: Request, images: Images, kv_tokens: int) -> list[int]:
    """The slow, obvious reference: the whole sequence anew for each token, in one chunk."""
    entries, tokens = list(request.prompt), list[int]()
    while True:
        info = scripted_info(context_size=CONTEXT, kv_tokens=CONTEXT, num_slots=1, max_batch_tokens=CONTEXT)
        backend = ScriptedBackend(info)
        for key, rows in images.items():
            backend.hold_rows(key, np.array(rows, dtype=np.float32)[:, None])
        pieces = Sequence(request).row_pieces(0, len(request.prompt))
        row = backend.forward(Batch(1, (Chunk(0, 0, tuple(entries), 1, rows=pieces),)))[0]
        token_id = int(row.argmax())
        entries.append(token_id)
        tokens.append(token_id)
        is_spent = len(tokens) == request.sampling.max_tokens or len(entries) == min(CONTEXT, kv_tokens)
        if token_id in info.eog_token_ids or is_spent:
            return tokens


def make_loop(rng: random.Random, images: Images, *, num_slots: int) -> Loop:
    info = scripted_info(
        context_size=CONTEXT,
        kv_tokens=rng.choice([70, 90, 140, 400]),
        num_slots=num_slots,
        max_batch_tokens=num_slots + rng.choice([8, 9, 30, 64]),
        traits=replace(rng.choice(ALL_TRAITS), can_export=True),
    )
    store = KVStore(rng.choice([20_000, 10**6])) if rng.random() < 0.5 else None
    loop = Loop(info, min(rng.choice([1, 2, 4]), num_slots), store=store, clock=crowded_clock(rng))
    loop.images, loop.delay = images, lambda: rng.choice([0, 0, 1, 5])
    return loop


def check(seed: int) -> Loop:
    rng = random.Random(seed)
    pictures = random_images(rng)
    images = {span.key: rows for span, rows in pictures}
    loop = make_loop(rng, images, num_slots=rng.choice([1, 4, 5]))
    stems = [[rng.randrange(250) for _ in range(rng.choice([0, 3, 20]))] for _ in range(3)]
    limit = min(CONTEXT, loop.info.kv_tokens) - 1
    drawn = [random_request(rng, index, [span for span, _ in pictures], stems) for index in range(8)]
    requests = [request for request in drawn if len(request.prompt) <= limit]
    waiting, aborted = list(requests), set[str]()
    for _ in range(harness.MAX_STEPS):
        if not waiting and not loop.scheduler.has_work:
            break
        while waiting and (rng.random() < 0.4 or not loop.scheduler.has_work):
            loop.add(waiting.pop())
        if rng.random() < 0.02:
            victim = rng.choice(requests).request_id
            aborted.add(victim)
            loop.abort(victim)
        if loop.scheduler.has_work:
            loop.step()
    assert not loop.scheduler.has_work, "does not come to an end"
    for request in requests:
        got, expected = loop.tokens[request.request_id], alone(request, images, loop.info.kv_tokens)
        if loop.reasons[request.request_id] is FinishReason.CANCELLED:
            assert got == expected[: len(got)]
        else:
            assert got == expected
    loop.scheduler.schedule()
    loop._move_rows()
    assert not loop.backend.rows, "rows are held that no request needs"
    return loop


def check_many(seeds: range) -> list[Loop]:
    return [check(seed) for seed in seeds]


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**32))
def test_answers_depend_on_nothing_but_the_request(seed: int) -> None:
    check(seed)


def test_all_of_it_happens() -> None:
    loops = check_many(range(60))
    assert sum(loop.num_preempted for loop in loops) > 0
    assert sum(loop.num_given for loop in loops) > 100
    assert sum(loop.scheduler.num_cached_tokens for loop in loops) > 500


def test_a_second_question_about_an_image_wants_no_rows() -> None:
    span = Span(b"image", 40)
    loop = Loop(scripted_info(context_size=200, kv_tokens=400))
    loop.images = {span.key: [float(i) for i in range(40)]}
    for index, tail in enumerate([(1, 2), (3, 4)]):
        entries = [9, *span.entries(), *tail]
        loop.add(make_request(f"r{index}", entries, max_tokens=2, spans=(PlacedSpan(1, span),)))
        loop.run()
    assert loop.num_given == 1
    assert loop.scheduler.num_cached_tokens == 41


Patch = Callable[[pytest.MonkeyPatch], None]


def names_all_rows_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media, "_row_entry", lambda key, index: -1 - index)


def cuts_what_is_seen_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_plan, "_cut_by", lambda sequence, end: None)


def computes_rows_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MediaRows, "limit", lambda self, sequence: 10**9)


def begins_rows_anew_behind_a_cached_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Sequence.row_pieces

    def row_pieces(self: Sequence, start: int, end: int):
        return tuple(piece._replace(first=0) for piece in original(self, start, end))

    monkeypatch.setattr(Sequence, "row_pieces", row_pieces)


def swaps_images(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Sequence.row_pieces

    def row_pieces(self: Sequence, start: int, end: int):
        keys = [placed.span.key for placed in self.request.spans]
        others = dict(zip(keys, reversed(keys), strict=True))
        pieces = original(self, start, end)
        return tuple(piece._replace(span=replace(piece.span, key=others[piece.span.key])) for piece in pieces)

    monkeypatch.setattr(Sequence, "row_pieces", row_pieces)


def gives_rows_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Sequence.row_pieces

    def row_pieces(self: Sequence, start: int, end: int):
        pieces = original(self, start, end)
        return tuple(piece._replace(first=piece.span.length - piece.first - piece.length) for piece in pieces)

    monkeypatch.setattr(Sequence, "row_pieces", row_pieces)


def gives_rows_up_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def given_up(self: MediaRows, running):
        dropped, self._held = self._held, set[bytes]()
        return dropped

    monkeypatch.setattr(MediaRows, "given_up", given_up)


BUGS = [
    names_all_rows_alike,
    cuts_what_is_seen_whole,
    computes_rows_that_are_not_there,
    begins_rows_anew_behind_a_cached_prefix,
    swaps_images,
    gives_rows_in_another_order,
    gives_rows_up_too_early,
]


@pytest.mark.parametrize("patch", BUGS, ids=lambda patch: patch.__name__)
def test_a_planted_bug_is_caught(patch: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "MAX_STEPS", 2000)
    patch(monkeypatch)
    with pytest.raises((AssertionError, IndexError)):
        check_many(range(60))


def test_rows_are_never_drafted() -> None:
    entries = [1, 2, 3, -5, -6, 4, 1, 2, 3]
    drafter = Drafter(entries, [0.9] * 10)
    _, most = drafter.look(5)
    assert drafter.match == 3
    assert most == 0
    entries = [7, 1, 2, 3, 8, -5, 1, 2, 3]
    drafter = Drafter(entries, [0.9] * 10)
    assert drafter.look(5)[1] == 1
    assert drafter.guess(1) == [8]
