"""A forward pass for whose rows there is no memory fails alone: the next one is as if it had not been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.core.batch import Batch, Chunk, Truncate
from stoker.errors import BackendError
from tests.reference.native_runs import open_native
from tests.tiny_models import TinyModel, write_tiny_model


@pytest.mark.parametrize("num_given", [0, 1])
def test_the_next_pass_finds_all_that_it_needs(num_given: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(type="Q8_0", num_layers=1))
    three = Batch(0, (Chunk(0, 0, (1, 2, 3), 3),), (Truncate(0, 0),))
    empty, left = np.empty, num_given

    def scarce(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        if not left:
            raise MemoryError
        left -= 1
        return empty(*args, **kwargs)

    with open_native(path, context_size=64, kv_tokens=64, num_slots=1) as backend:
        backend.forward(Batch(0, (Chunk(0, 0, (1,), 1),)))
        with monkeypatch.context() as patch:
            patch.setattr(np, "empty", scarce)
            with pytest.raises(BackendError):
                backend.forward(three)
        rows = backend.forward(three)
        assert len(rows) == len(backend.maxima) == 3
        np.testing.assert_array_equal(backend.maxima.max(axis=1), rows.max(axis=1))
