"""Clients that send damaged, lying and good files beside a stream, on a real model: the stream must not change.

`python -m tests.e2e.media_soak --seconds 600 --seed 1` fails if the text of a stream ever differs, or if an answer is
an error of the server instead of the file's. The projector of one server makes 1,024 rows of an image that see each
other, which ends servers whose steps are shorter. That of another server ends its process for every recording, by an
assertion of libmtmd.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import httpx

from stoker.models.store import resolve
from tests.e2e.conftest import Server, serving
from tests.pdf_files import pdf_file
from tests.projector_files import base64_of, data_url, picture, write_projector
from tests.sound_files import wav, write_sound_projector

WIDTH, SIDE = 576, 448
OPTIONS = ("--ctx-size", "2048", "--kv-tokens", "6144", "--parallel", "4", "--max-queue", "64")
BOUND_S = 600
NUM_CLIENTS = 3
STREAM: dict[str, Any] = {"model": "m", "prompt": "The sky", "temperature": 0, "max_tokens": 64, "stream": True}
FILES_FAULTS = (200, 400, 413, 422)
PROJECTORS_FAULT = (500,)
FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
SURROUNDINGS = ("http://127.0.0.1/", "http://169.254.169.254/x", "http://[::1]/", "file:///etc/passwd", "data:,x")

Part: TypeAlias = dict[str, Any]


def good_image(rng: random.Random) -> bytes:
    color = tuple(rng.randrange(256) for _ in range(rng.choice([3, 4])))
    size = rng.randrange(1, 300), rng.randrange(1, 300)
    return picture(color, size, rng.choice(FORMATS) if len(color) == 3 else "PNG")


def damaged(rng: random.Random, data: bytes) -> bytes:
    """A few bytes differ, are missing, or come twice."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(changed))
        match rng.randrange(3):
            case 0:
                changed[place] ^= 1 << rng.randrange(8)
            case 1:
                del changed[place : place + rng.randrange(1, 40)]
            case _:
                changed[place:place] = changed[place : place + rng.randrange(1, 40)]
        if not changed:
            return b"\x89PNG\r\n\x1a\n"
    return bytes(changed)


def lying_png(width: int, height: int) -> bytes:
    """It claims to be this large, and has nothing in it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")


def image_part(data: bytes) -> Part:
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


def document_part(data: bytes) -> Part:
    return {"type": "file", "file": {"file_data": base64_of(data), "filename": "x.pdf"}}


PARTS: Sequence[Callable[[random.Random], Part]] = (
    lambda rng: image_part(good_image(rng)),
    lambda rng: image_part(damaged(rng, good_image(rng))),
    lambda rng: image_part(lying_png(rng.choice([1, 9000, 60_000]), rng.choice([0, 9000, 60_000]))),
    lambda rng: document_part(pdf_file([f"Page {rng.random()}"])),
    lambda rng: document_part(damaged(rng, pdf_file(["Hello", "World"]))),
    lambda rng: {"type": "image_url", "image_url": {"url": rng.choice(SURROUNDINGS)}},
    lambda rng: {"type": "text", "text": rng.choice(["<__media__>", "<__media_0123__>", "x" * rng.randrange(1, 500)])},
    lambda rng: {"type": rng.choice(["image", "video", "input_audio", "document"]), "source": rng.randrange(9)},
)


def message(rng: random.Random) -> dict[str, Any]:
    parts = [rng.choice(PARTS)(rng) for _ in range(rng.choice([1, 1, 2, 3]))]
    asked = [*parts, {"type": "text", "text": "?"}]
    return {"model": "m", "max_tokens": rng.randrange(1, 9), "messages": [{"role": "user", "content": asked}]}


async def streamed(client: httpx.AsyncClient) -> str:
    """The text of the stream, which must come to its end."""
    text, has_ended = "", False
    async with client.stream("POST", "/v1/completions", json=STREAM) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                has_ended = True
            elif line.startswith("data: "):
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
    assert has_ended, f"the stream broke off after {text!r}"
    return text


async def neighbor(client: httpx.AsyncClient, expected: str, ends: Counter[str]) -> None:
    while True:
        assert await streamed(client) == expected
        ends["streams"] += 1


async def sender(
    client: httpx.AsyncClient, bodies: Iterable[dict[str, Any]], ends: Counter[str], statuses: Collection[int]
) -> None:
    """Every fourth request is given up at once."""
    for number, body in enumerate(bodies):
        wait_s = 0.05 if number % 4 == 3 else BOUND_S
        try:
            response = await client.post("/v1/chat/completions", json=body, timeout=wait_s)
        except httpx.TimeoutException:
            assert wait_s < BOUND_S, f"no answer: {body}"
            ends["left"] += 1
            continue
        assert response.status_code in statuses, f"{response.status_code} {response.text}: {body}"
        ends[str(response.status_code)] += 1


async def soak(
    server: Server, clients: Sequence[Iterable[dict[str, Any]]], statuses: Collection[int] = FILES_FAULTS
) -> Counter[str]:
    """How often the requests of all clients ended in which way, one of these statuses among them."""
    ends = Counter[str]()
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=BOUND_S) as client:
        expected = await streamed(client)
        async with asyncio.TaskGroup() as group:
            beside = group.create_task(neighbor(client, expected, ends))
            senders = [group.create_task(sender(client, bodies, ends, statuses)) for bodies in clients]
            await asyncio.wait(senders)
            beside.cancel()
        assert await streamed(client) == expected
    return ends


def messages_until(end: float, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Messages until a time of `time.monotonic`."""
    while time.monotonic() < end:
        yield message(rng)


@contextmanager
def seeing_server(model: str, folder: Path, side: int = SIDE) -> Generator[Server]:
    """A server whose projector makes `(side / 14)²` rows of every image."""
    projector = write_projector(folder / "mmproj.gguf", WIDTH, kind="gemma3", side=side, merge=1)
    with serving(model, "--mmproj", str(projector), *OPTIONS, log=folder / "log") as server:
        yield server


@contextmanager
def deaf_server(model: Path, folder: Path) -> Generator[Server]:
    """A server that finds a projector beside its model, which ends the process that is to encode a recording."""
    folder.joinpath("model.gguf").symlink_to(model)
    write_sound_projector(folder / "mmproj.gguf", WIDTH, stack=8)
    with serving(str(folder / "model.gguf"), *OPTIONS, log=folder / "log") as server:
        yield server


def recording(number: int) -> dict[str, Any]:
    """A message with a recording."""
    part = {"type": "input_audio", "input_audio": {"data": base64_of(wav(0.1 + number / 100)), "format": "wav"}}
    return {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": [part]}]}


def recordings_until(end: float) -> Iterator[dict[str, Any]]:
    """Messages with recordings until a time of `time.monotonic`."""
    for number in count():
        if time.monotonic() > end:
            return
        yield recording(number % 50)


async def soak_all(seeing: Server, deaf: Server, seconds: float, seed: int) -> Sequence[Counter[str]]:
    end = time.monotonic() + seconds
    clients = [messages_until(end, random.Random(f"{seed}-{number}")) for number in range(NUM_CLIENTS)]
    return await asyncio.gather(soak(seeing, clients), soak(deaf, [recordings_until(end)], PROJECTORS_FAULT))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="smollm2")
    given = parser.parse_args()
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        seeing = stack.enter_context(seeing_server(given.model, folders[0]))
        deaf = stack.enter_context(deaf_server(resolve(given.model), folders[1]))
        for ends in asyncio.run(soak_all(seeing, deaf, given.seconds, given.seed)):
            print(dict(ends))
    return 0


if __name__ == "__main__":
    sys.exit(main())
