"""What `test_native_invariances` says, of models with recurrent layers: of their slots only drafts can be cut off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.brief import examples
from tests.properties.test_native_invariances import Pool, check_answers
from tests.tiny_models import TinyModel, write_tiny_model

MODELS = {
    "lfm2": TinyModel(architecture="lfm2", type="Q8_0", num_layers=2, has_head=False),
    "falcon-h1": TinyModel(architecture="falcon-h1", type="Q8_0"),
    "jamba": TinyModel(architecture="jamba", type="Q8_0"),
    "kimi-linear": TinyModel(architecture="kimi-linear", type="Q8_0", num_experts=12, num_dense=1, shared_size=32),
    "mamba2": TinyModel(architecture="mamba2", type="Q8_0", has_head=False),
    "qwen35": TinyModel(architecture="qwen35", type="Q8_0", num_layers=3, has_head=False),
}


@pytest.fixture(scope="module", params=list(MODELS))
def pool(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Pool]:
    path = write_tiny_model(tmp_path_factory.mktemp("tiny") / "m.gguf", MODELS[request.param])
    found = Pool(path, None, [()])
    yield found
    found.close()


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_logits_depend_on_nothing_but_the_request(pool: Pool, seed: int) -> None:
    for backend in pool.backends:
        check_answers(pool, backend, seed)


@pytest.mark.slow
def test_the_random_runs_do_preempt_and_draft(pool: Pool) -> None:
    """The property above would be empty if nothing ever happened."""
    runs = [check_answers(pool, pool.backends[index], seed) for seed in range(12) for index in (0, 2)]
    assert sum(num_preempted for num_preempted, _ in runs) > 3
    drafts = [scheduler.speculation for _, scheduler in runs]
    assert sum(draft.num_drafted - draft.num_accepted for draft in drafts) > 20
