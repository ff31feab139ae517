"""Which type of keys and values is usual, what it takes, and what it cannot hold."""

from __future__ import annotations

from typing import get_args

import pytest

from stoker import _native
from stoker.backends.native import KVType
from stoker.backends.native.kv_types import choose_kv_type, element_bytes
from stoker.errors import ConfigError
from tests.unit.native.tiny import PAGE, Tiny, build

_USUAL = {"avx2": "i16", "avxvnni": "i16", "avx512": "i16", "amx": "q16"}


@pytest.mark.parametrize("kernels", _native.kernel_names())
def test_codes_are_usual_where_they_are_faster(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_NATIVE_KERNELS", kernels)
    assert choose_kv_type(None, 64) == _USUAL.get(kernels, "f16")
    assert choose_kv_type(None, 528) == "f16"
    assert choose_kv_type("q8", 64) == "q8"


@pytest.mark.parametrize(("kv_type", "most"), [("q16", 512), ("i16", 512), ("q8", 576), ("q4", 576)])
def test_heads_too_large_for_codes_are_refused_by_name(kv_type: KVType, most: int) -> None:
    assert choose_kv_type(kv_type, most) == kv_type
    words = f"heads of {most + 16} elements are too large for {kv_type}, which takes up to {most}; give --kv-type f16"
    with pytest.raises(ConfigError, match=words):
        choose_kv_type(kv_type, most + 16)


def test_kernels_that_cannot_run_are_a_mistake_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_NATIVE_KERNELS", "mmx")
    with pytest.raises(ConfigError, match="STOKER_NATIVE_KERNELS is 'mmx'"):
        choose_kv_type(None, 64)


@pytest.mark.parametrize("kv_type", get_args(KVType))
@pytest.mark.parametrize("head_size", [16, 48, 64])
def test_what_is_planned_is_what_a_page_takes(head_size: int, kv_type: KVType) -> None:
    tiny = Tiny(head_size=head_size, num_layers=3)
    decoder = build(tiny).open(kv_type=kv_type)
    numbers = PAGE * 2 * tiny.num_layers * tiny.num_kv_heads * head_size
    assert decoder.page_bytes == numbers * element_bytes(kv_type, head_size)
    decoder.close()
