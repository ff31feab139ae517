"""Images are decoded in processes of their own; one that dies costs one request."""

import asyncio
import sys

import pytest

from stoker.errors import BackendError, InvalidInput
from stoker.media.decoder import ImageDecoder
from stoker.media.images import as_png
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


def test_a_decoder_that_cannot_be_started_is_no_fault_of_the_image():
    async def decode() -> None:
        with pytest.raises(BackendError, match="cannot be started"):
            await ImageDecoder(("/nowhere",)).png(RED)

    asyncio.run(decode())
