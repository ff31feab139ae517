"""Decodes untrusted images, each in a separate process, and keeps the results for the next turn.

A file that crashes its decoder costs only the request that brought it, and is refused at once when it comes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import OrderedDict
from dataclasses import dataclass
from importlib.util import find_spec

from stoker.core.media import Media
from stoker.errors import BackendError, ConfigError, InvalidInput, StokerError
from stoker.media.decode_program import DONE, REFUSED
from stoker.media.pixels import SIZES

_PROGRAM = (sys.executable, "-I", "-m", "stoker.media.decode_program")
_MAX_KEPT_BYTES = 64 << 20
_MAX_REFUSED = 1024
_AT_A_TIME = 2
_WAIT_S = 60.0


def check_available() -> None:
    """Raises ConfigError if the library that decodes images is not installed."""
    if find_spec("PIL") is None:
        message = "images need Pillow, which is not installed: pip install 'stoker[images]'"
        raise ConfigError(message, key="mmproj")


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded image."""

    width: int
    height: int
    pixels: bytes
    """RGB, row after row."""


class ImageDecoder:
    """Belongs to one event loop.

    Args:
        program: the command that decodes one image.
        max_kept_bytes: of results that are kept, least recently used first to go.
    """

    def __init__(self, program: tuple[str, ...] = _PROGRAM, *, max_kept_bytes: int = _MAX_KEPT_BYTES) -> None:
        self._program = program
        self._max_kept_bytes = max_kept_bytes
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        """Decoded images by marker and form."""
        self._refused: OrderedDict[str, str] = OrderedDict()
        """Reasons for refusals, by the markers of files."""
        self._turns = asyncio.Semaphore(_AT_A_TIME)
        self.num_decoded = 0

    async def png(self, image: Media) -> bytes:
        """The image as an RGB PNG.

        Raises:
            InvalidInput: the file is damaged, too large, or ended the process that decoded it.
            BackendError: the process cannot be started.
        """
        return await self._decoded(image, "png")

    async def picture(self, image: Media) -> Picture:
        """The image as plain pixels. For errors see `png`."""
        decoded = await self._decoded(image, "pixels")
        width, height = SIZES.unpack(decoded[: SIZES.size])
        return Picture(width, height, decoded[SIZES.size :])

    async def _decoded(self, image: Media, form: str) -> bytes:
        async with self._turns:
            if image.marker in self._refused:
                raise _refusal(self._refused[image.marker])
            key = (image.marker, form)
            if (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return kept
            answer = await self._run(image.data, form)
            if answer[:1] != DONE:
                raise self._refuse(image, answer)
            self.num_decoded += 1
            self._keep(key, answer[1:])
            return answer[1:]

    def _refuse(self, image: Media, answer: bytes) -> StokerError:
        is_judged = answer[:1] == REFUSED
        reason = answer[1:].decode("utf-8", "replace") if is_judged else "ends the process that decodes it"
        self._refused[image.marker] = reason
        if len(self._refused) > _MAX_REFUSED:
            self._refused.popitem(last=False)
        return _refusal(reason)

    def _keep(self, key: tuple[str, str], decoded: bytes) -> None:
        self._kept[key] = decoded
        while sum(map(len, self._kept.values())) > self._max_kept_bytes:
            self._kept.popitem(last=False)

    async def _run(self, data: bytes, form: str) -> bytes:
        """The output of the process; empty if it crashed or took too long."""
        pipe = asyncio.subprocess.PIPE
        quiet = asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(*self._program, form, stdin=pipe, stdout=pipe, stderr=quiet)
        except OSError as error:
            raise BackendError(f"the image decoder cannot be started: {error}") from error
        try:
            async with asyncio.timeout(_WAIT_S):
                answer, _ = await process.communicate(data)
        except TimeoutError:
            return b""
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return answer if process.returncode == 0 else b""


def _refusal(reason: str) -> InvalidInput:
    return InvalidInput(f"an image {reason}", parameter="messages")
