"""Decodes untrusted images and recordings, each in a separate process, and keeps the results for the next turn.

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
from stoker.errors import BackendError, ConfigError, InvalidInput, StokerError, UnsupportedParameter, reason_of
from stoker.media.decode_program import DONE, REFUSED
from stoker.media.pixels import SIZES

_PROGRAM = (sys.executable, "-I", "-m", "stoker.media.decode_program")
_SOUND_PROGRAM = (sys.executable, "-I", "-m", "stoker.media.sound_program")
_MAX_KEPT_BYTES = 64 << 20
_MAX_REFUSED = 1024
_AT_A_TIME = 2
_WAIT_S, _SOUND_WAIT_S = 60.0, 240.0


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


class _FileDecoder:
    """Belongs to one event loop.

    Args:
        program: the command that decodes one file.
        what: a file, for errors.
        max_kept_bytes: of results that are kept, least recently used first to go.
        wait_s: for one file.
    """

    def __init__(self, program: tuple[str, ...], what: str, max_kept_bytes: int, wait_s: float) -> None:
        self._program = program
        self._what = what
        self._wait_s = wait_s
        self._max_kept_bytes = max_kept_bytes
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        """Decoded files by marker and form."""
        self._refused: OrderedDict[str, str] = OrderedDict()
        """Reasons for refusals, by the markers of files."""
        self._turns = asyncio.Semaphore(_AT_A_TIME)
        self.num_decoded = 0

    async def _decoded(self, file: Media, form: str) -> bytes:
        async with self._turns:
            if file.marker in self._refused:
                raise self._refusal(self._refused[file.marker])
            key = (file.marker, form)
            if (kept := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return kept
            answer = await self._run(file.data, form)
            if answer[:1] != DONE:
                raise self._refuse(file, answer)
            self.num_decoded += 1
            self._keep(key, answer[1:])
            return answer[1:]

    def _refuse(self, file: Media, answer: bytes) -> StokerError:
        is_judged = answer[:1] == REFUSED
        reason = answer[1:].decode("utf-8", "replace") if is_judged else "ends the process that decodes it"
        self._refused[file.marker] = reason
        if len(self._refused) > _MAX_REFUSED:
            self._refused.popitem(last=False)
        return self._refusal(reason)

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
            raise BackendError(f"the decoder of {self._what} cannot be started: {reason_of(error)}") from error
        try:
            async with asyncio.timeout(self._wait_s):
                answer, _ = await process.communicate(data)
        except TimeoutError:
            return b""
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return answer if process.returncode == 0 else b""

    def _refusal(self, reason: str) -> InvalidInput:
        return InvalidInput(f"{self._what} {reason}", parameter="messages")


class ImageDecoder(_FileDecoder):
    """Belongs to one event loop.

    Args:
        program: the command that decodes one image.
        max_kept_bytes: of results that are kept, least recently used first to go.
    """

    def __init__(self, program: tuple[str, ...] = _PROGRAM, *, max_kept_bytes: int = _MAX_KEPT_BYTES) -> None:
        super().__init__(program, "an image", max_kept_bytes, _WAIT_S)

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


class SoundDecoder(_FileDecoder):
    """Belongs to one event loop.

    Args:
        program: the command that decodes one recording.
        max_kept_bytes: of results that are kept, least recently used first to go.
    """

    def __init__(self, program: tuple[str, ...] = _SOUND_PROGRAM, *, max_kept_bytes: int = _MAX_KEPT_BYTES) -> None:
        super().__init__(program, "a recording", max_kept_bytes, _SOUND_WAIT_S)

    async def samples(self, recording: Media, rate: int) -> bytes:
        """The recording as one channel: floats of 4 bytes between -1 and 1.

        Args:
            recording: the file.
            rate: samples per second of the result.

        Raises:
            UnsupportedParameter: the library that decodes recordings is not installed.
            InvalidInput: the file is damaged, too long, or ended the process that decoded it.
            BackendError: the process cannot be started.
        """
        check_sounds()
        return await self._decoded(recording, str(rate))


def check_sounds() -> None:
    """Raises UnsupportedParameter if the library that decodes recordings is not installed."""
    if find_spec("av") is None:
        message = "audio cannot be decoded here: the server needs PyAV, pip install 'stoker[audio]'"
        raise UnsupportedParameter(message, parameter="messages")
