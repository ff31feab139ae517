"""A short run of `model_soak`; for a long one see there."""

from tests.e2e.model_soak import check, soak


def test_models_that_come_and_go_leave_nothing_behind():
    check(*soak(14, warm_up_s=4))
