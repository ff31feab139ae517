"""Images are decoded in processes of their own; one that dies costs one request."""

import asyncio
import io
import sys
from typing import Any

import pytest
from PIL import Image

from stoker.errors import BackendError, InvalidInput, Timeout
from stoker.media.decoder import ImageDecoder
from stoker.media.images import FORMATS, as_pixels, as_png
from stoker.media.plain import SIZES
from stoker.text.media_parts import media_from_bytes
from tests.projector_files import picture

RED = media_from_bytes(picture("red"), "image", "x")
BLUE = media_from_bytes(picture("blue"), "image", "x")


def test_an_image_is_decoded_once_and_kept_as_long_as_there_is_room():
    async def decode() -> None:
        decoder = ImageDecoder(max_kept_bytes=len(as_png(RED.data)))
        assert await decoder.png(RED) == await decoder.png(RED) == as_png(RED.data)
        assert decoder.num_decoded == 1
        await decoder.png(BLUE)
        await decoder.png(RED)
        assert decoder.num_decoded == 3

    asyncio.run(decode())


def variants() -> list[tuple[str, bytes]]:
    """Files for which the decoder needs different parts of its library."""
    frames = [Image.new("P", (8, 8), index) for index in range(3)]
    written: dict[str, io.BytesIO] = {name: io.BytesIO() for name in ("gif", "webp", "apng", "cmyk", "rotated", "deep")}
    moving: dict[str, Any] = {"save_all": True, "append_images": frames[1:], "duration": 50}
    frames[0].save(written["gif"], "GIF", transparency=0, **moving)
    frames[0].convert("RGBA").save(written["webp"], "WEBP", **moving)
    frames[0].save(written["apng"], "PNG", **moving)
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(written["cmyk"], "JPEG")
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    Image.new("RGB", (8, 4)).save(written["rotated"], "JPEG", exif=exif)
    Image.new("I;16", (8, 8), 60_000).save(written["deep"], "PNG")
    made = [(name, file.getvalue()) for name, file in written.items()]
    return [*made, *((kind, picture("red", format=kind)) for kind in FORMATS), ("alpha", picture((9, 9, 9, 9)))]


def test_every_kind_of_image_is_decoded_in_the_confined_process():
    async def decode() -> None:
        decoder = ImageDecoder()
        for name, data in variants():
            decoded = await decoder.picture(media_from_bytes(data, "image", "x"))
            expected = as_pixels(data)
            assert (decoded.width, decoded.height) == SIZES.unpack(expected[: SIZES.size]), name
            assert decoded.pixels == expected[SIZES.size :], name

    asyncio.run(decode())


def test_a_damaged_image_is_refused_with_the_reason():
    async def decode() -> None:
        with pytest.raises(InvalidInput, match="damaged or cut off"):
            await ImageDecoder().png(media_from_bytes(RED.data[:50], "image", "x"))

    asyncio.run(decode())


def test_a_file_that_ends_its_process_is_refused_and_not_tried_again():
    async def decode() -> None:
        decoder = ImageDecoder((sys.executable, "-c", "import os; os.abort()"))
        for program in (decoder._program, ("/nowhere",)):
            decoder._program = program  # the second one would be another error
            with pytest.raises(InvalidInput, match="ends the process"):
                await decoder.png(RED)

    asyncio.run(decode())


def test_what_happens_to_the_process_from_outside_tells_nothing_about_the_image():
    async def decode() -> None:
        decoder = ImageDecoder((sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"))
        with pytest.raises(BackendError, match="ended from outside"):
            await decoder.png(RED)
        decoder._program, decoder._wait_s = (sys.executable, "-c", "import time; time.sleep(600)"), 0.1
        with pytest.raises(Timeout, match="busy"):
            await decoder.png(RED)
        decoder._program, decoder._wait_s = ImageDecoder()._program, 300
        assert await decoder.png(RED) == as_png(RED.data)

    asyncio.run(decode())


def test_a_process_that_writes_without_end_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("stoker.media.decoder._MAX_IMAGE_BYTES", 1 << 20)

    async def decode() -> None:
        endless = "import sys\nwhile True: sys.stdout.write('+' * 65536)"
        with pytest.raises(InvalidInput, match="ends the process"):
            await ImageDecoder((sys.executable, "-c", endless)).png(RED)

    asyncio.run(decode())


def test_an_image_of_little_detail_is_reduced_and_another_one_than_the_whole():
    data = picture("red", (1024, 300))
    small, whole = (media_from_bytes(data, "image", "x", longest=longest) for longest in (512, 0))
    assert small.marker != whole.marker

    async def decode() -> None:
        decoder = ImageDecoder()
        found = [await decoder.picture(image) for image in (small, whole)]
        assert [(each.width, each.height) for each in found] == [(512, 150), (1024, 300)]

    asyncio.run(decode())


def test_a_decoder_that_cannot_be_started_is_no_fault_of_the_image():
    async def decode() -> None:
        with pytest.raises(BackendError, match="cannot be started"):
            await ImageDecoder(("/nowhere",)).png(RED)

    asyncio.run(decode())
