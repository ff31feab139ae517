"""Decodes untrusted images and recordings, each in a separate process, and caches the results for later requests.

A file that crashes its decoder fails only its own request, and is refused immediately when it is sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from dataclasses import dataclass
from importlib.util import find_spec

from stoker.core.media import Media
from stoker.errors import BackendError, ConfigError, InvalidInput, Timeout, UnsupportedParameter, reason_of
from stoker.media.confined import FileRefused
from stoker.media.plain import BYTES_OF_SAMPLE, MAX_PIXELS, MAX_S, SIZES
from stoker.media.verdicts import Verdicts

_PROGRAM = (sys.executable, "-I", "-m", "stoker.media.decode_program")
_MAX_KEPT_BYTES = 64 << 20
_MAX_IMAGE_BYTES = 4 * MAX_PIXELS
_PIECE_BYTES = 1 << 20
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
    """Decodes files of one kind, at most two at a time. Not thread-safe: belongs to one event loop.

    Args:
        program: the command that decodes one file.
        what: noun for a file of this kind, for errors.
        max_kept_bytes: maximum size of cached results; the least recently used ones are evicted first.
        wait_s: timeout for one file, in seconds.
    """

    def __init__(self, program: tuple[str, ...], what: str, max_kept_bytes: int, wait_s: float) -> None:
        self._program = program
        self._what = what
        self._wait_s = wait_s
        self._verdicts = Verdicts[tuple[str, str, int]](max_kept_bytes)
        """Results and refusals by the file's marker, form and size."""
        self._turns = asyncio.Semaphore(_AT_A_TIME)

    @property
    def num_decoded(self) -> int:
        return self._verdicts.num_decoded

    async def _decoded(self, file: Media, form: str, size: int, max_bytes: int) -> bytes:
        key = (file.marker, form, size)
        async with self._turns:
            try:
                if (known := self._verdicts.known(key)) is not None:
                    return known
                return self._verdicts.take(key, *await self._run(file.data, form, size, max_bytes))
            except FileRefused as error:
                raise InvalidInput(f"{self._what} {error}", parameter="messages") from error

    async def _run(self, data: bytes, form: str, size: int, max_bytes: int) -> tuple[bytes, int]:
        """The output of the process and its exit code. A process that writes more than `max_bytes` is ended."""
        command = (*self._program, form, str(size))
        pipe, quiet = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=quiet)
        except OSError as error:
            raise BackendError(f"the decoder of {self._what} cannot be started: {reason_of(error)}") from error
        try:
            async with asyncio.timeout(self._wait_s):
                answer, _ = await asyncio.gather(_read(process, max_bytes), _write(process, data))
                return answer, await process.wait()
        except TimeoutError as error:
            raise Timeout(
                f"{self._what} could not be decoded within {self._wait_s:g} s: this machine is busy"
            ) from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


async def _read(process: asyncio.subprocess.Process, max_bytes: int) -> bytes:
    """Reads the output up to `max_bytes`. A process that writes more was taken over by its file, and is ended."""
    assert process.stdout is not None
    found = bytearray()
    while piece := await process.stdout.read(_PIECE_BYTES):
        found += piece
        if len(found) > max_bytes:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and its output was not read yet
                process.send_signal(signal.SIGABRT)
            return b""
    return bytes(found)


async def _write(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):  # the process has ended, and its exit code tells why
        process.stdin.write(data)
        await process.stdin.drain()
        process.stdin.close()


class ImageDecoder(_FileDecoder):
    """Decodes untrusted images to pixels or PNG. Not thread-safe: belongs to one event loop.

    Args:
        program: the command that decodes one image.
        max_kept_bytes: maximum size of cached results; the least recently used ones are evicted first.
    """

    def __init__(self, program: tuple[str, ...] = _PROGRAM, *, max_kept_bytes: int = _MAX_KEPT_BYTES) -> None:
        super().__init__(program, "an image", max_kept_bytes, _WAIT_S)

    async def png(self, image: Media) -> bytes:
        """The image as an RGB PNG.

        Raises:
            InvalidInput: the file is damaged, too large, or ended the process that decoded it.
            BackendError: the process cannot be started, or was ended from outside.
            Timeout: the machine is too busy.
        """
        return await self._decoded(image, "png", image.longest, _MAX_IMAGE_BYTES)

    async def picture(self, image: Media) -> Picture:
        """The image as plain pixels. For errors see `png`."""
        decoded = await self._decoded(image, "pixels", image.longest, _MAX_IMAGE_BYTES)
        width, height = SIZES.unpack(decoded[: SIZES.size])
        return Picture(width, height, decoded[SIZES.size :])


class SoundDecoder(_FileDecoder):
    """Decodes untrusted recordings to samples. Not thread-safe: belongs to one event loop.

    Args:
        program: the command that decodes one recording.
        max_kept_bytes: maximum size of cached results; the least recently used ones are evicted first.
    """

    def __init__(self, program: tuple[str, ...] = _PROGRAM, *, max_kept_bytes: int = _MAX_KEPT_BYTES) -> None:
        super().__init__(program, "a recording", max_kept_bytes, _SOUND_WAIT_S)

    async def samples(self, recording: Media, rate: int) -> bytes:
        """The samples of the recording, mixed to one channel: 4-byte floats between -1 and 1.

        Args:
            recording: the file.
            rate: samples per second of the result.

        Raises:
            UnsupportedParameter: the library that decodes recordings is not installed.
            InvalidInput: the file is damaged, too long, or ended the process that decoded it.
            BackendError, Timeout: see `ImageDecoder.png`.
        """
        check_sounds()
        return await self._decoded(recording, "samples", rate, round(BYTES_OF_SAMPLE * rate * (MAX_S + 1)))


def check_sounds() -> None:
    """Raises UnsupportedParameter if the library that decodes recordings is not installed."""
    if find_spec("av") is None:
        message = "audio cannot be decoded here: the server needs PyAV, pip install 'stoker[audio]'"
        raise UnsupportedParameter(message, parameter="messages")
