"""Encodes prompts with images and recordings in the form that llama-server takes."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence

from stoker.core.media import Media, MediaKind
from stoker.engine.cards import media_refused
from stoker.engine.protocol import Submit
from stoker.errors import InvalidInput
from stoker.media.decoder import ImageDecoder, SoundDecoder
from stoker.media.wav import as_wav

_OLD_MARKER = "<__media__>"
"""Marker of old versions. Some versions take it for a file even if they report another marker."""

_SAMPLE_RATE = 16_000
"""Sample rate in Hz that nearly every audio encoder uses; llama-server resamples for the others."""


class RemoteMedia:
    """The encoder of prompts with files for one model. Belongs to one event loop.

    Args:
        kinds: kinds of files that the model takes.
        marker: the text that marks the place of a file in a prompt for the server.
        bos: the BOS text that the server itself adds to a prompt; empty = it adds none.
    """

    def __init__(self, kinds: Sequence[MediaKind], marker: str, bos: str) -> None:
        self._kinds = kinds
        self._marker = marker
        self._bos = bos
        self._images, self._sounds = ImageDecoder(), SoundDecoder()

    async def prompt(self, submit: Submit) -> Mapping[str, object]:
        """The prompt with its files, as a JSON object.

        Raises:
            InvalidInput: a file cannot be decoded, the text contains a marker of the server, or the prompt ends with a
                file.
            UnsupportedParameter: the model does not take a file of this kind.
        """
        for file in submit.media:
            if file.kind not in self._kinds:
                raise media_refused(file.kind)
        files = {file.marker: file for file in submit.media}
        texts, places = _split(submit, files)
        if not texts[-1].strip():  # llama-server would abort: without a last text token it has no logits
            raise InvalidInput("the prompt must not end with an image or a recording: add text", parameter="messages")
        if any(marker in text for text in texts for marker in (self._marker, _OLD_MARKER)):
            raise InvalidInput(f"the text must not have {_OLD_MARKER!r} in it", parameter="messages")
        encoded = {marker: await self._encoded(files[marker]) for marker in dict.fromkeys(places)}
        prompt = self._marker.join(texts)
        # The server adds BOS to every prompt with files, even if the prompt already begins with it.
        prompt = prompt.removeprefix(self._bos) if self._bos else prompt
        return {"prompt_string": prompt, "multimodal_data": [encoded[marker] for marker in places]}

    def text(self, submit: Submit) -> str:
        """The prompt's text without its files."""
        return "".join(_split(submit, {file.marker: file for file in submit.media})[0])

    async def _encoded(self, file: Media) -> str:
        if file.kind == "image":
            data = await self._images.png(file)
        else:
            data = as_wav(await self._sounds.samples(file, _SAMPLE_RATE), _SAMPLE_RATE)
        return base64.b64encode(data).decode()


def _split(submit: Submit, files: Mapping[str, Media]) -> tuple[list[str], list[str]]:
    """The texts of the prompt, and the markers of files between them."""
    assert isinstance(submit.prompt, str), "files stand in prompts that are text"
    parts = re.split(f"({'|'.join(map(re.escape, files))})", submit.prompt)
    return parts[::2], parts[1::2]
