"""What an adapter is said to take before it is loaded."""

from __future__ import annotations

from mmap import mmap
from pathlib import Path
from typing import Any, cast

import pytest

from stoker import _native
from stoker.backends.native import adapter_bytes
from stoker.backends.native.adapters import NativeAdapters
from stoker.backends.native.architectures import describe_decoder
from stoker.backends.native.file import ModelParts
from stoker.models.gguf import read_gguf
from tests.adapter_files import MATRICES, random_pairs, write_adapter
from tests.tiny_models import TinyModel, write_tiny_model

ROWS_OF_A_STAGE = 512 * 3


class TakenMemory:
    """A decoder that only looks how much it is given."""

    num_bytes = 0

    def load_adapter(self, number: int, memory: mmap, changes: list[Any]) -> None:
        self.num_bytes = len(memory)


@pytest.mark.parametrize(("kind", "rank"), [("F32", 4), ("F16", 16), ("Q8_0", 32)])
def test_an_adapter_takes_what_was_said(tmp_path: Path, kind: str, rank: int) -> None:
    matrices = MATRICES if kind != "Q8_0" else ("attn_q", "ffn_gate")
    model = write_tiny_model(tmp_path / "m.gguf", TinyModel(hidden_size=64, feed_forward_size=96))
    adapter = write_adapter(tmp_path / "a.gguf", random_pairs(model, 1, rank=rank, matrices=matrices), kind=kind)
    with read_gguf(model) as file:
        spec = describe_decoder(ModelParts([file]), 1)
    decoder = TakenMemory()
    NativeAdapters(spec, read_gguf).load(cast(_native.Decoder, decoder), "key", adapter)
    with read_gguf(adapter) as file:
        said = adapter_bytes(file) - ROWS_OF_A_STAGE * 4 * rank
    assert decoder.num_bytes == pytest.approx(said, rel=0.01)


def test_an_adapter_that_will_be_refused_takes_nothing(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "m.gguf", TinyModel())
    pairs = random_pairs(model, 1, matrices=("attn_q",))
    adapter = write_adapter(tmp_path / "a.gguf", pairs)
    data = adapter.read_bytes().replace(b".lora_b", b".lora_c")
    adapter.write_bytes(data)
    with read_gguf(adapter) as file:
        assert adapter_bytes(file) == 0
