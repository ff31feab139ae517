"""Files whose counts of experts, sizes of states and lists of layers are not what their tensors are: errors, no crash.

`python -m tests.fuzz SECONDS SEED family encoder` tries more of them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.errors import ModelError
from tests.fuzz.families import encoder_case, family_case

NUM_CASES = 60


@pytest.mark.parametrize("case", [family_case, encoder_case], ids=["decoders", "encoders"])
def test_a_lie_is_an_error_or_changes_nothing(case: Callable[[random.Random, Path], str], tmp_path: Path) -> None:
    ends = Counter[str]()
    for seed in range(NUM_CASES):
        with suppress(ModelError):
            ends[case(random.Random(f"lie {seed}"), tmp_path)] += 1
    ends["an error"] = NUM_CASES - ends.total()
    assert ends["an error"] > NUM_CASES / 4
    assert ends["computed"] > NUM_CASES / 10
