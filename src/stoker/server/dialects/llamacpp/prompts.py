"""The prompts of llama-server's own requests, with the files that stand in them. It tokenizes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest
from typing import TypeAlias, cast

from stoker.core.media import Media
from stoker.engine.protocol import Prompt
from stoker.errors import InvalidInput
from stoker.server.dialects.llamacpp.types import PromptObject
from stoker.text.media_parts import MediaPart, media_from_base64, media_of_parts

MEDIA_MARKER = "<__media__>"

RawPrompt: TypeAlias = str | PromptObject | list[str | int | PromptObject | list[int | str]] | None


def prompts_with_media(raw: RawPrompt) -> tuple[Sequence[Prompt], tuple[Media, ...]]:
    """The prompts of a request, and the different files in them, which stand there as their own markers.

    A list is one prompt if there are token ids in it, else one prompt per item, as in llama-server.

    Raises:
        InvalidInput: a prompt is missing or malformed, or a file cannot be used.
    """
    items = _items(raw)
    files: list[MediaPart] = []
    prompts = [_text(item, files) if isinstance(item, PromptObject) else cast("Prompt", item) for item in items]
    return prompts, media_of_parts(files, "prompt")


def _items(raw: RawPrompt) -> Sequence[object]:
    if raw is None:
        raise InvalidInput("`prompt` is missing", parameter="prompt")
    if not isinstance(raw, list):
        return [raw]
    if not raw:
        raise InvalidInput("`prompt` is an empty list", parameter="prompt")
    if any(isinstance(item, int) for item in raw):
        if any(isinstance(item, list | PromptObject) for item in raw):
            raise InvalidInput("`prompt` mixes token ids and whole prompts", parameter="prompt")
        return [raw]
    return raw


def _text(prompt: PromptObject, files: list[MediaPart]) -> str:
    """The prompt's text with the marker of each file in its place; the files are added to those of the request."""
    if not prompt.multimodal_data:
        return prompt.prompt_string
    texts = prompt.prompt_string.split(MEDIA_MARKER)
    if len(texts) != len(prompt.multimodal_data) + 1:
        message = f"`prompt` has {len(texts) - 1} times {MEDIA_MARKER} for {len(prompt.multimodal_data)} files"
        raise InvalidInput(message, parameter="prompt")
    own = [_part(data, f"prompt.multimodal_data[{index}]") for index, data in enumerate(prompt.multimodal_data)]
    files += own
    return "".join(chain.from_iterable(zip_longest(texts, (part.text for part in own), fillvalue="")))


def _part(data: str, where: str) -> MediaPart:
    """What kind of file it is, its first bytes say."""
    return MediaPart(media_from_base64(data, None, where))
