"""OpenAI's endpoints for transcription and translation of speech. The handlers only call other modules, in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import cast

from starlette.responses import Response
from starlette.types import Scope

from stoker.core.speech import Segment
from stoker.errors import StokerError, Timeout, UnsupportedParameter
from stoker.media.transcriber import Heard
from stoker.media.transcripts import Transcript
from stoker.runtime.registry import ServedModel
from stoker.runtime.whisper import Transcribes
from stoker.server.answer import stream, whole
from stoker.server.api import Call, Router
from stoker.server.azure import of_deployment
from stoker.server.errors import error_event
from stoker.server.generation import Generation
from stoker.server.transcription.replies import (
    DurationUsage,
    HearingWriter,
    delta_event,
    done_event,
    transcript_response,
)
from stoker.server.transcription.requests import Asked, asked_by, hearing_request
from stoker.server.transcription.types import (
    TRANSCRIPTION_FIELDS,
    TRANSLATION_FIELDS,
    TextDelta,
    TextDone,
    Transcription,
    TranscriptionForm,
    TranslationForm,
    VerboseTranscription,
)
from stoker.server.transport.connection import read_body
from stoker.server.transport.form import boundary_of, parse_form
from stoker.server.transport.sse import EventStream

_log = logging.getLogger(__name__)

router = Router(api="OpenAI")

_EXPECTED = "`file` and `model`"


@router.endpoint(
    "POST",
    "/v1/audio/transcriptions",
    "Transcribes a recording.",
    aliases=("/audio/transcriptions",),
    form=TranscriptionForm,
    fields=TRANSCRIPTION_FIELDS,
    reply=(Transcription, VerboseTranscription),
    event=(TextDelta, TextDone),
)
async def transcriptions(call: Call[None]) -> Response | EventStream:
    boundary, body = boundary_of(call.request, _EXPECTED), await read_body(call.request, call.config)
    form = await call.off_loop(parse_form, boundary, body)
    bounds = TRANSCRIPTION_FIELDS, call.config.max_body_bytes
    return await _answered(call, await call.off_loop(asked_by, form, "transcribe", TranscriptionForm, *bounds))


@router.endpoint(
    "POST",
    "/v1/audio/translations",
    "Translates a recording into English.",
    aliases=("/audio/translations",),
    form=TranslationForm,
    fields=TRANSLATION_FIELDS,
    reply=(Transcription, VerboseTranscription),
    event=(TextDelta, TextDone),
)
async def translations(call: Call[None]) -> Response | EventStream:
    boundary, body = boundary_of(call.request, _EXPECTED), await read_body(call.request, call.config)
    form = await call.off_loop(parse_form, boundary, body)
    bounds = TRANSLATION_FIELDS, call.config.max_body_bytes
    return await _answered(call, await call.off_loop(asked_by, form, "translate", TranslationForm, *bounds))


async def _answered(call: Call[None], asked: Asked) -> Response | EventStream:
    asked = replace(asked, form=of_deployment(asked.form, call.request.scope))
    served = await call.lease(asked.form.model)
    if isinstance(served.runtime, Transcribes):
        return await _transcribed(call, asked, served.runtime)
    if "audio" in served.runtime.card.media:
        return await _heard(call, asked, served)
    message = (
        f"`{served.model_id}` takes no audio: name a Whisper model (`stoker serve FOLDER`), or serve a model with a "
        "projector for audio (--mmproj FILE)"
    )
    raise UnsupportedParameter(message, parameter="model")


async def _transcribed(call: Call[None], asked: Asked, runtime: Transcribes) -> Response | EventStream:
    found = _in_time(runtime.transcribe(asked.recording, asked.wish), call.config.request_timeout_s)
    if not asked.form.stream:
        async with aclosing(found):
            return transcript_response(asked, await call.wait(_whole(asked, found)))
    try:
        first = await call.wait(_first(found))
    except BaseException:
        await found.aclose()
        raise
    return EventStream(_events(found, first, call.request.scope), found.aclose, call.config)


async def _heard(call: Call[None], asked: Asked, served: ServedModel) -> Response | EventStream:
    request = await call.off_loop(hearing_request, asked, served.runtime, call.caller("transcript"), call.config)
    generation = await call.wait(Generation.open(served, request))
    writer = HearingWriter(asked, generation)
    if asked.form.stream:
        return EventStream(stream(generation, writer, call.request.scope), generation.close, call.config)
    async with generation:
        return cast("Response", await call.wait(whole(generation, writer)))


async def _in_time(
    found: AsyncGenerator[Heard | Segment, None], limit_s: float | None
) -> AsyncGenerator[Heard | Segment, None]:
    """The items of a transcription; raises Timeout if the whole transcription takes longer than the limit."""
    loop = asyncio.get_running_loop()
    deadline = None if limit_s is None else loop.time() + limit_s
    async with aclosing(found):
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    item = await anext(found, None)
            except TimeoutError as error:
                assert limit_s is not None
                message = f"the request was not finished within {limit_s:g} s"
                raise Timeout(message, timeout_s=limit_s) from error
            if item is None:
                return
            yield item


async def _first(found: AsyncGenerator[Heard | Segment, None]) -> Heard:
    first = await anext(found)
    assert isinstance(first, Heard), "what is known of a recording comes before its segments"
    return first


async def _whole(asked: Asked, found: AsyncGenerator[Heard | Segment, None]) -> Transcript:
    first = await _first(found)
    segments = [item async for item in found if isinstance(item, Segment)]
    return Transcript(task=asked.task, language=first.language, duration_s=first.duration_s, segments=segments)


async def _events(
    found: AsyncGenerator[Heard | Segment, None], first: Heard, scope: Scope
) -> AsyncGenerator[bytes, None]:
    text = ""
    try:
        async for item in found:
            if isinstance(item, Segment):
                piece = item.text if text else item.text.lstrip()
                text += piece
                yield delta_event(piece)
        yield done_event(text.strip(), DurationUsage(round(first.duration_s, 3)))
    except StokerError as error:
        _log.warning("a stream ended with %s", error.code)
        yield error_event(error, scope)
