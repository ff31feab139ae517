"""A short run of `model_soak`; for a long one see there."""

from pathlib import Path

import pytest

from tests.e2e.model_soak import check, soak


@pytest.mark.slow
def test_models_that_come_and_go_leave_nothing_behind(smollm2_path: Path):
    check(*soak(14, warm_up_s=4, model=smollm2_path))
