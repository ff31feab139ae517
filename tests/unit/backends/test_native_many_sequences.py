"""Ten thousand sequences of random lengths through a small pool: no page is left, and nothing of others is seen."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from stoker.core.batch import CacheOp, Chunk, CopyPrefix, Truncate
from tests.brief import mostly_slow
from tests.reference.native_runs import all_rows, open_native, step
from tests.tiny_models import TinyModel, write_tiny_model

NUM_SLOTS = 5
SLOTS_A_STEP = 4
LONGEST_COPY, LONGEST_CHUNK = 60, 40
MODEL = TinyModel(type="Q8_0", num_layers=1)


@pytest.mark.parametrize("kv_type", mostly_slow(["f16", "q8", "q4", "q16", "i16"], ["f16", "q4"]))
def test_ten_thousand_sequences_leave_no_page_behind(kv_type: str, tmp_path: Path) -> None:
    rng = random.Random(kv_type)
    path = write_tiny_model(tmp_path / "m.gguf", MODEL)
    sizes = {"context_size": 128, "kv_type": kv_type}
    pool = open_native(path, kv_tokens=NUM_SLOTS * (LONGEST_COPY + LONGEST_CHUNK), num_slots=NUM_SLOTS, **sizes)
    with pool, open_native(path, kv_tokens=128, num_slots=1, **sizes) as lonely:
        held: list[tuple[int, ...]] = [()] * NUM_SLOTS
        for index in range(10_000 // SLOTS_A_STEP):
            ops, chunks = list[CacheOp](), list[Chunk]()
            for slot in rng.sample(range(NUM_SLOTS), SLOTS_A_STEP):
                ops.append(Truncate(slot, 0))
                held[slot] = ()
                if rng.random() < 0.5:
                    source = rng.choice([other for other in range(NUM_SLOTS) if other != slot])
                    length = rng.randrange(min(len(held[source]), LONGEST_COPY) + 1)
                    ops.append(CopyPrefix(source, slot, length))
                    held[slot] = held[source][:length]
                entries = tuple(rng.randrange(256) for _ in range(rng.randrange(1, LONGEST_CHUNK + 1)))
                chunks.append(Chunk(slot, len(held[slot]), entries, 1))
            rows = step(pool, *chunks, ops=ops)
            for chunk in chunks:
                held[chunk.slot] += chunk.entries
            if index % 100 == 0:
                for chunk, row in zip(chunks, rows, strict=True):
                    np.testing.assert_array_equal(row, all_rows(lonely, held[chunk.slot])[-1])
                    step(lonely, ops=[Truncate(0, 0)])
        assert pool.num_used_pages > 0
        step(pool, ops=[Truncate(slot, 0) for slot in range(NUM_SLOTS)])
        assert pool.num_used_pages == 0
