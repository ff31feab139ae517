"""What a stream loses while an image of many tiles is encoded: its tokens a second, and its longest gap.

    python benchmarks/images_beside_streams.py MODEL.gguf --rounds 3

The projector has random weights and the size of SigLIP base, as that of SmolVLM has: 17 tiles of 1,024 patches for an
image of 1792 pixels on a side. The model is copied, and three tokens of its vocabulary, which no text has, get the
names that such a projector puts around tiles. In each round a stream runs alone and then beside a new image. On a
machine that has other things to do, the shares of processor time say more than tokens a second.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import psutil
from gguf import GGUFReader, GGUFWriter

from stoker.core.media import Media
from stoker.core.params import SamplingParams
from stoker.engine.client import EngineClient
from stoker.engine.config import EngineConfig
from stoker.engine.protocol import Output, Submit
from stoker.loading.encoders import create_encoder
from stoker.media.encoder import MediaEncoder
from stoker.text.media_parts import media_from_bytes
from tests.projector_files import SIGLIP_BASE, picture, write_projector

_SIDE, _MERGE = 448, 4
_MARKERS = ("\n\n", "<fake_token_around_image>", "<global-img>")
_CONTEXT = 4096
_CONTROL = 3


@dataclass
class Stream:
    """When the tokens of a stream came."""

    times: list[float] = field(default_factory=list[float])
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)

    def rate(self, begin: float, end: float) -> float:
        return sum(begin <= at < end for at in self.times) / (end - begin)

    def longest_gap(self, begin: float, end: float) -> float:
        within = [begin, *(at for at in self.times if begin <= at < end), end]
        return max(after - before for before, after in pairwise(within))


def with_markers(model: Path, target: Path) -> Path:
    """A copy of a model whose last control tokens have the names of markers."""
    reader = GGUFReader(model)
    kinds = reader.fields["tokenizer.ggml.token_type"].contents()
    names = list(reader.fields["tokenizer.ggml.tokens"].contents())
    unused = [index for index, kind in enumerate(kinds) if kind == _CONTROL][-len(_MARKERS) :]
    for index, marker in zip(unused, _MARKERS, strict=True):
        names[index] = marker
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, entry in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            value = names if key == "tokenizer.ggml.tokens" else entry.contents()
            writer.add_key_value(key, value, entry.types[0], entry.types[-1])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


async def write(client: EngineClient, name: str, stream: Stream) -> None:
    """Story after story; ended by cancelling it."""
    sampling = SamplingParams(temperature=0, ignore_eos=True, max_tokens=_CONTEXT // 2)
    for number in count():
        submit = Submit(f"{name}-{number}", f"{name}, {number}: once upon a time", sampling)
        async with aclosing(client.generate(submit)) as items:
            async for item in items:
                if isinstance(item, Output):
                    stream.times += [time.perf_counter()] * len(item.token_ids)
                    stream.has_begun.set()


async def see(client: EngineClient, name: str, image: Media) -> None:
    submit = Submit(name, f"Look at {image.marker} and", SamplingParams(temperature=0, max_tokens=1), media=(image,))
    async with aclosing(client.generate(submit)) as items:
        async for _ in items:
            pass


async def measure(
    client: EngineClient, encoder: MediaEncoder, number: int, seconds: float, most: float
) -> tuple[float, ...]:
    stream = Stream()
    task = asyncio.create_task(write(client, f"story {number}", stream))
    await stream.has_begun.wait()
    begin = time.perf_counter()
    cpu_s = _cpu_s(client.child_pid)
    await asyncio.sleep(seconds)
    middle, engine_s = time.perf_counter(), _cpu_s(client.child_pid)
    encoder_s, num_encoded = _cpu_s(encoder.pid), encoder.num_encoded
    image = media_from_bytes(picture((number, 99, 9), (4 * _SIDE, 4 * _SIDE)), "image", "image")
    with suppress(TimeoutError):
        async with asyncio.timeout(most or None):
            await see(client, f"image {number}", image)
    end = time.perf_counter()
    busy_s, seen_s = _cpu_s(client.child_pid) - engine_s, _cpu_s(encoder.pid) - encoder_s
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    tiles = encoder.num_encoded - num_encoded
    assert most or tiles == 17, "an image has 17 tiles"
    shares = (engine_s - cpu_s) / (middle - begin), busy_s / (end - middle), seen_s / (end - middle)
    rates = stream.rate(begin, middle), stream.rate(middle, end)
    gaps = stream.longest_gap(begin, middle), stream.longest_gap(middle, end)
    return *rates, *gaps, end - middle, tiles, *shares


def _cpu_s(pid: int | None) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


async def compare(model: Path, rounds: int, seconds: float, most: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy = with_markers(model, Path(folder) / "model.gguf")
        (width,) = {tensor.shape[0] for tensor in GGUFReader(copy).tensors if tensor.name == "token_embd.weight"}
        projector = Path(folder) / "mmproj.gguf"
        write_projector(projector, int(width), kind="idefics3", side=_SIDE, merge=_MERGE, shape=SIGLIP_BASE)
        config = EngineConfig(model_path=str(copy), mmproj=str(projector), ctx_size=_CONTEXT, parallel=2, max_draft=0)
        encoder = create_encoder(config)
        assert encoder is not None
        client = EngineClient(config, encoder=encoder)
        try:
            await client.start()
            print("tok/s alone, beside; kept; longest gap alone, beside; seconds, tiles; cores: alone, beside, encoder")
            found: list[tuple[float, ...]] = []
            for number in range(rounds):
                alone, beside, *rest = await measure(client, encoder, number, seconds, most)
                found.append((alone, beside))
                print(f"{alone:.1f}, {beside:.1f}; {beside / alone:.2f}; {_line(rest)}", flush=True)
        finally:
            await client.close()
    print(f"median kept {statistics.median(each[1] / each[0] for each in found):.2f}")


def _line(numbers: Sequence[float]) -> str:
    return "; ".join(f"{number:.2f}" for number in numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="alone, in each round")
    parser.add_argument("--most", type=float, default=0, help="seconds beside an image, in each round; 0 = all of it")
    args = parser.parse_args()
    asyncio.run(compare(args.model, args.rounds, args.seconds, args.most))


if __name__ == "__main__":
    main()
