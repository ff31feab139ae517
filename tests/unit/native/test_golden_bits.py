"""Logits are the same to the bit on every CPU: the tables of this one compute those whose digests were written down."""

from __future__ import annotations

import pytest

from stoker import _native
from tests.unit.native.golden import INPUTS, LOGITS, MODELS, inputs, logits


@pytest.mark.parametrize("model", MODELS)
def test_the_inputs_are_the_same_on_every_cpu(model: str) -> None:
    assert inputs(model) == INPUTS[model]


@pytest.mark.parametrize("kernels", _native.kernel_names())
@pytest.mark.parametrize(("model", "kv_type"), LOGITS)
def test_the_logits_are_the_same_on_every_cpu(model: str, kv_type: str, kernels: str) -> None:
    assert logits(model, kv_type, kernels) == LOGITS[model, kv_type]
