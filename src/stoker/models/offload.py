"""Which layers of a GGUF model go to a GPU, and what that takes there. Nothing is allocated, and no GPU is asked.

```
n_gpu_layers     0    1          2                  …    blocks + 1
on the device    -    output     output, last block      everything but the token embedding
```
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Protocol

from stoker.errors import ResourceExhausted
from stoker.models.description import all_tensors
from stoker.models.gguf import GGUFFile
from stoker.models.memory_plan import MemoryNeeds

_BLOCK = re.compile(r"blk\.(\d+)\.")
_EMBEDDING = "token_embd.weight"
_OUTPUT = "output.weight"
_MARGIN_PART = 0.05
_MIN_MARGIN = 256 << 20
"""Of a device that is left to others, and to what a driver keeps for itself."""
_MIB = 1 << 20


class Device(Protocol):
    """A GPU with memory of its own."""

    @property
    def name(self) -> str: ...
    @property
    def free_bytes(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """What the parts of a model take, in bytes."""

    embedding: int
    """Of tokens; always in the machine's memory."""
    blocks: tuple[int, ...]
    output: int

    @property
    def num_layers(self) -> int:
        """Layers that can be offloaded: the output counts as one."""
        return len(self.blocks) + 1

    def weights_on_device(self, gpu_layers: int) -> int:
        """Weights of the last layers."""
        num_blocks = self.num_blocks(gpu_layers)
        return 0 if gpu_layers <= 0 else self.output + sum(self.blocks[len(self.blocks) - num_blocks :])

    def num_blocks(self, gpu_layers: int) -> int:
        """Blocks among the last layers."""
        return max(0, min(gpu_layers, self.num_layers) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """A decision: so many layers on the GPU, and the needs of the rest."""

    gpu_layers: int
    num_layers: int
    device_bytes: int
    """About what the devices have to hold."""
    needs: MemoryNeeds
    """Of the machine's memory; `kv_tokens` is set if some of the pool is on a device."""


def layer_sizes(gguf: GGUFFile, stay: Sequence[str] = ()) -> LayerSizes:
    """The sizes of a model's parts. An output that shares the token embedding has a copy of it on the device.

    Args:
        gguf: its file, or the first one.
        stay: patterns of tensors that stay in the machine's memory, whatever their layer is.
    """
    embedding = output = 0
    stays = re.compile("|".join(f"(?:{pattern})" for pattern in stay) or r"(?!)")
    blocks: dict[int, int] = {}
    has_output = False
    for tensor in all_tensors(gguf):
        found = _BLOCK.match(tensor.name)
        if found is not None and stays.search(tensor.name):
            blocks.setdefault(int(found[1]), 0)
        elif found is not None:
            blocks[int(found[1])] = blocks.get(int(found[1]), 0) + tensor.num_bytes
        elif tensor.name == _EMBEDDING:
            embedding += tensor.num_bytes
        else:
            output += tensor.num_bytes
            has_output |= tensor.name == _OUTPUT
    sizes = tuple(blocks[index] for index in sorted(blocks))
    return LayerSizes(embedding=embedding, blocks=sizes, output=output if has_output else output + embedding)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMemory:
    """Devices with memory of their own, and what one model may have there. Satisfies `Devices`."""

    sizes: LayerSizes
    """Of the model."""
    room: int
    """Bytes that the devices can give, their margins left out."""
    names: str
    asked: int | None
    """Layers that the user wants there; negative = all, None = as many as fit."""

    def wanted(self, needs: MemoryNeeds, room: int) -> int:
        layers = self._layers(needs, room)
        return _device_bytes(needs, self.sizes, layers) if layers else 0

    def placed(self, needs: MemoryNeeds, room: int) -> MemoryNeeds:
        found = self.offload(needs, room)
        return replace(found.needs, device_bytes=found.device_bytes)

    def offload(self, needs: MemoryNeeds, room: int) -> Offload:
        """Places a model.

        Args:
            needs: what it takes where all of it is in the machine's memory.
            room: bytes that the devices give at most.

        Raises:
            ResourceExhausted: the layers that the user wants do not fit; the message says how many would.
        """
        return _placed(replace(needs, devices=None), self.sizes, self._layers(needs, room), room)

    def _layers(self, needs: MemoryNeeds, room: int) -> int:
        most = self.sizes.num_layers
        fitting = next((n for n in range(most, 0, -1) if _device_bytes(needs, self.sizes, n) <= room), 0)
        wanted = fitting if self.asked is None else min(self.asked, most) if self.asked >= 0 else most
        if wanted <= fitting:
            return wanted
        taken, given = _device_bytes(needs, self.sizes, wanted), max(0, room)
        raise ResourceExhausted(
            f"{needs.model}: {wanted} layers take about {taken // _MIB} MiB on the GPU, and {self.names} "
            f"can give {given // _MIB} MiB; --gpu-layers {fitting} fits, and is the default",
            needed_bytes=taken,
            available_bytes=given,
        )


def own_memory(sizes: LayerSizes, devices: Sequence[Device], asked: int | None) -> OwnMemory:
    """What devices with memory of their own can give to a model now.

    Args:
        sizes: of its layers.
        devices: at least one.
        asked: see `OwnMemory.asked`.
    """
    room = sum(device.free_bytes - max(_MIN_MARGIN, int(device.total_bytes * _MARGIN_PART)) for device in devices)
    return OwnMemory(sizes=sizes, room=room, names=", ".join(device.name for device in devices), asked=asked)


def shared_offload(needs: MemoryNeeds, sizes: LayerSizes, asked: int | None) -> Offload:
    """On a GPU without memory of its own everything counts where it did."""
    most = sizes.num_layers
    layers = most if asked is None or asked < 0 else min(asked, most)
    return Offload(gpu_layers=layers, num_layers=most, device_bytes=0, needs=needs)


def _placed(needs: MemoryNeeds, sizes: LayerSizes, gpu_layers: int, room: int) -> Offload:
    if gpu_layers == 0:
        return Offload(gpu_layers=0, num_layers=sizes.num_layers, device_bytes=0, needs=needs)
    part = sizes.num_blocks(gpu_layers) / max(1, len(sizes.blocks))
    weights = sizes.weights_on_device(gpu_layers)
    kv_on_device = ceil(needs.kv_bytes_per_token * part)
    kv_tokens = needs.kv_tokens
    if kv_tokens is None and kv_on_device:
        left = room - _device_bytes(needs, sizes, gpu_layers) + needs.ctx_size * kv_on_device
        affordable = min(needs.pool_bytes, left) // kv_on_device
        kv_tokens = min(needs.parallel * needs.ctx_size, max(needs.ctx_size, affordable))
    pool = (kv_tokens or needs.ctx_size) + needs.spare_kv_tokens
    here = replace(
        needs,
        kv_tokens=kv_tokens,
        weights_bytes=max(sizes.embedding, needs.weights_bytes - weights),
        kv_bytes_per_token=needs.kv_bytes_per_token - kv_on_device,
        state_bytes=ceil(needs.state_bytes * (1 - part)),
    )
    on_device = weights + pool * kv_on_device + ceil(needs.state_bytes * part) + needs.compute_bytes
    return Offload(gpu_layers=gpu_layers, num_layers=sizes.num_layers, device_bytes=on_device, needs=here)


def _device_bytes(needs: MemoryNeeds, sizes: LayerSizes, gpu_layers: int) -> int:
    """With the smallest pool that is of use: one full request, or what the user says."""
    part = sizes.num_blocks(gpu_layers) / max(1, len(sizes.blocks))
    pool = (needs.kv_tokens or needs.ctx_size) + needs.spare_kv_tokens
    kept = ceil(part * (pool * needs.kv_bytes_per_token + needs.state_bytes))
    return sizes.weights_on_device(gpu_layers) + kept + needs.compute_bytes
