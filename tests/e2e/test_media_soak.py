"""A stream goes on, and nothing breaks, while others send damaged and lying files; see `media_soak` for many more."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.media_soak import (
    PARTS,
    PROJECTORS_FAULT,
    deaf_server,
    good_image,
    image_part,
    message,
    recording,
    seeing_server,
    soak,
)


def asked(*parts: dict[str, Any]) -> dict[str, Any]:
    content = [*parts, {"type": "text", "text": "?"}]
    return {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": content}]}


@pytest.mark.slow
def test_files_of_others_end_no_stream(smollm2_path: Path, tmp_path: Path):
    rng = random.Random(7)
    each = [asked(make(rng)) for make in PARTS for _ in range(2)]
    good = [asked(image_part(good_image(rng)))]
    mixed = [message(rng) for _ in range(6)]
    with seeing_server(str(smollm2_path), tmp_path, side=112) as server:
        ends = asyncio.run(soak(server, [each, good + mixed]))
    assert ends["200"] >= 3
    assert ends["400"] >= 8


@pytest.mark.slow
def test_a_projector_that_ends_its_process_ends_no_stream(smollm2_path: Path, tmp_path: Path):
    pytest.importorskip("av")
    with deaf_server(smollm2_path, tmp_path) as server:
        ends = asyncio.run(soak(server, [[recording(0), recording(1), recording(0)]], PROJECTORS_FAULT))
    assert ends["500"] == 3
