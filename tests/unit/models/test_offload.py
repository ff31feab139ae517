"""What goes to a GPU, by its memory: as many layers as fit, and nothing of them is counted against the machine's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from stoker.errors import ResourceExhausted
from stoker.models.gguf import read_gguf
from stoker.models.memory_plan import MemoryNeeds
from stoker.models.offload import Device, LayerSizes, Offload, layer_sizes, own_memory, shared_offload
from tests.tiny_models import TinyModel, write_tiny_model

MIB = 1 << 20
GIB = 1 << 30
SIZES = LayerSizes(embedding=100 * MIB, blocks=(200 * MIB,) * 20, output=100 * MIB)
NEEDS = MemoryNeeds(
    model="m",
    ctx_size=1000,
    kv_tokens=None,
    parallel=4,
    spare_kv_tokens=0,
    weights_bytes=4200 * MIB,
    kv_bytes_per_token=20 * 1024,
    compute_bytes=100 * MIB,
)


@dataclass(frozen=True)
class Card:
    total_bytes: int
    free_bytes: int
    name: str = "CUDA0"


def card(free: int) -> Card:
    return Card(free + 1000, free)


def offload(needs: MemoryNeeds, sizes: LayerSizes, devices: list[Device], asked: int | None) -> Offload:
    own = own_memory(sizes, devices, asked)
    return own.offload(needs, own.room)


def test_everything_goes_to_a_large_card_and_little_stays() -> None:
    found = offload(NEEDS, SIZES, [card(16 * GIB)], None)
    assert (found.gpu_layers, found.num_layers) == (21, 21)
    assert found.needs.weights_bytes == 100 * MIB, "the token embedding"
    assert found.needs.kv_bytes_per_token == 0
    assert found.needs.kv_tokens == 4 * 1000
    assert found.needs.within(512 * MIB).total_bytes < 512 * MIB, "a machine with little memory has room for it"
    assert found.device_bytes == (100 + 4000 + 100) * MIB + 4000 * 20 * 1024


def test_as_many_layers_as_fit_go_to_a_small_card() -> None:
    found = offload(NEEDS, SIZES, [card(2 * GIB)], None)
    assert 0 < found.gpu_layers < 21
    assert found.device_bytes <= 2 * GIB
    more = replace(NEEDS, kv_tokens=None)
    with pytest.raises(ResourceExhausted, match=f"--gpu-layers {found.gpu_layers} fits"):
        offload(more, SIZES, [card(2 * GIB)], found.gpu_layers + 1)
    on_device = 100 * MIB + (found.gpu_layers - 1) * 200 * MIB
    assert found.needs.weights_bytes == NEEDS.weights_bytes - on_device
    assert found.needs.kv_bytes_per_token == pytest.approx(20 * 1024 * (21 - found.gpu_layers) / 20, abs=1)


def test_tensors_that_stay_do_not_count_on_the_card(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", TinyModel(architecture="qwen3moe", num_experts=4))
    with read_gguf(path) as gguf:
        plain, placed = layer_sizes(gguf), layer_sizes(gguf, [r"blk\.0\.ffn_.*_exps"])
    assert placed.blocks[0] < plain.blocks[0] / 2, "experts are most of a layer"
    assert placed.blocks[1:] == plain.blocks[1:]
    assert (placed.output, placed.embedding) == (plain.output, plain.embedding)


def test_two_cards_hold_more_than_one() -> None:
    one = offload(NEEDS, SIZES, [card(2 * GIB)], None).gpu_layers
    assert offload(NEEDS, SIZES, [card(2 * GIB)] * 2, None).gpu_layers > one


@pytest.mark.parametrize("free", [0, 200 * MIB, 400 * MIB])
def test_a_card_without_room_leaves_all_to_the_cpu(free: int) -> None:
    found = offload(NEEDS, SIZES, [card(free)], None)
    assert (found.gpu_layers, found.device_bytes, found.needs) == (0, 0, NEEDS)


def test_what_the_user_says_is_done_if_it_fits() -> None:
    found = offload(NEEDS, SIZES, [card(16 * GIB)], 3)
    assert found.gpu_layers == 3
    assert found.needs.weights_bytes == NEEDS.weights_bytes - 500 * MIB
    assert offload(NEEDS, SIZES, [card(16 * GIB)], 99).gpu_layers == 21
    assert offload(NEEDS, SIZES, [card(16 * GIB)], -1).gpu_layers == 21
    with pytest.raises(ResourceExhausted, match="21 layers take about"):
        offload(NEEDS, SIZES, [card(2 * GIB)], -1)


def test_a_pool_that_was_asked_for_counts_before_layers() -> None:
    small = offload(replace(NEEDS, kv_tokens=50_000), SIZES, [card(3 * GIB)], None)
    assert small.gpu_layers < offload(NEEDS, SIZES, [card(3 * GIB)], None).gpu_layers
    assert small.needs.kv_tokens == 50_000


def test_on_a_gpu_that_shares_the_memory_everything_counts() -> None:
    assert shared_offload(NEEDS, SIZES, None).gpu_layers == 21
    assert shared_offload(NEEDS, SIZES, None).needs == NEEDS
    assert shared_offload(NEEDS, SIZES, 4).gpu_layers == 4
