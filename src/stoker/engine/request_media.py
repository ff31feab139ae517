"""Images and recordings in requests: replaces their markers in prompts by spans, and sends rows that the engine wants.

The encoding of files into rows (embeddings) is the task of `MediaEncoder`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from stoker.core.media import Layout, Media, Span
from stoker.engine.cards import ModelCard, media_refused
from stoker.engine.protocol import GiveRows, PlacedPrompt, RowsWanted, Submit
from stoker.engine.question_messages import CountTokens
from stoker.errors import BackendError, ModelNotLoaded, StokerError

if TYPE_CHECKING:
    from stoker.media.encoder import MediaEncoder


class RequestMedia:
    """The media files of one engine's requests. Belongs to one event loop.

    Args:
        encoder: encodes files for the model; None = the model takes no files.
        send: gives rows to the engine; may raise `ModelNotLoaded`.
        fail: ends a request.
    """

    def __init__(
        self,
        encoder: MediaEncoder | None,
        send: Callable[[GiveRows], None],
        fail: Callable[[str, StokerError], None],
    ) -> None:
        self._encoder = encoder
        self._send = send
        self._fail = fail
        self._owners: dict[str, dict[bytes, Media]] = {}
        """By request id, the file of each span, by the span's key."""
        self._tasks: dict[str, set[asyncio.Task[None]]] = {}

    async def placed(self, submit: Submit, card: ModelCard) -> Submit:
        """The request with spans in place of its files' markers. The caller must call `forget` when the request ends.

        Args:
            submit: the request with markers.
            card: the model's card.

        Raises:
            InvalidInput: a file cannot be used.
            UnsupportedParameter: the model does not take files of this kind.
            ModelUnsupported: the projector does not fit the model.
            BackendError: the encoder cannot be started.
        """
        if not submit.media:
            return submit
        layouts = await self._layouts(submit.media, card)
        files = {file.marker: file for file in submit.media}
        owners = {part.key: files[m] for m, layout in layouts.items() for part in layout if isinstance(part, Span)}
        self._owners[submit.request_id] = owners
        return msgspec.structs.replace(submit, prompt=_placed(submit.prompt, layouts), media=())

    async def counted(self, question: CountTokens, card: ModelCard) -> CountTokens:
        """The question with spans in place of its files' markers. For arguments and errors see `placed`."""
        if not question.media:
            return question
        layouts = await self._layouts(question.media, card)
        return msgspec.structs.replace(question, prompt=_placed(question.prompt, layouts), media=())

    async def _layouts(self, media: Sequence[Media], card: ModelCard) -> dict[str, Layout]:
        """The layout (texts and spans) of each file, by its marker."""
        for file in media:
            if self._encoder is None or file.kind not in card.media:
                raise media_refused(file.kind, card.media_refusal)
        assert self._encoder is not None
        await self._encoder.check(card.row_width)
        return {file.marker: await self._encoder.layout(file) for file in media}

    def on_wanted(self, event: RowsWanted) -> None:
        """Starts to encode the rows that the engine asks for, and sends them when they are ready."""
        media = self._owners.get(event.request_id, {}).get(event.key)
        if media is None:
            return  # the request has ended here
        task = asyncio.create_task(self._give(event, media), name="stoker-rows")
        tasks = self._tasks.setdefault(event.request_id, set())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def forget(self, request_id: str) -> None:
        """Drops the files of a request that has ended. Their rows are not sent; an encoding that has begun goes on."""
        self._owners.pop(request_id, None)
        for task in self._tasks.pop(request_id, ()):
            task.cancel()

    async def _give(self, event: RowsWanted, media: Media) -> None:
        assert self._encoder is not None
        try:
            values = await self._encoder.rows(media, event.key)
            self._send(GiveRows(event.key, values))
        except ModelNotLoaded:
            return  # the restarted engine asks again
        except StokerError as error:
            self._fail(event.request_id, error)
        except OSError as error:
            self._fail(event.request_id, BackendError(f"a file cannot be encoded: {error}"))


def _placed(prompt: PlacedPrompt, layouts: Mapping[str, Layout]) -> list[int | str | Span]:
    """A prompt with the layouts of files in place of their markers."""
    found: list[int | str | Span] = []
    for part in _split(prompt, layouts):
        for piece in layouts.get(part, (part,)) if isinstance(part, str) else (part,):
            if isinstance(piece, str) and found and isinstance(found[-1], str):
                found[-1] += piece  # one text, because a token may span the border
            else:
                found.append(piece)
    return found


def _split(prompt: str | Sequence[object], files: Iterable[str]) -> list[int | str | Span]:
    """The texts of a prompt and the markers between them; empty texts are left out."""
    texts = [prompt] if isinstance(prompt, str) else list(prompt)
    pattern = re.compile(f"({'|'.join(map(re.escape, files))})")
    found: list[int | str | Span] = []
    for text in texts:
        if isinstance(text, str):
            found += [part for part in pattern.split(text) if part]
        elif isinstance(text, int | Span):
            found.append(text)
    return found
