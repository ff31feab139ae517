"""A Whisper model as a runtime: it is loaded, transcribes within its bounds, refuses everything else, and closes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from stoker.chat.capabilities import card_capabilities
from stoker.core.params import SamplingParams
from stoker.core.speech import Segment, Wish
from stoker.engine.config import EngineConfig
from stoker.engine.protocol import Submit
from stoker.engine.question_messages import ChangeAdapters, Tokenize
from stoker.errors import BackendError, ModelNotLoaded, Overloaded, UnsupportedParameter
from stoker.media.transcriber import Transcriber
from stoker.media.wav import as_wav
from stoker.runtime.whisper import Transcribes, WhisperRuntime
from stoker.text.media_parts import media_from_bytes
from tests.sound_files import tone

pytest.importorskip("av")

RECORDING = media_from_bytes(as_wav(tone(2.1, 100, 8_000).tobytes(), 8_000), "audio", "x")


def run(tmp_path: Path, body: Callable[[WhisperRuntime], Awaitable[None]], *, parallel: int = 2) -> None:
    config = EngineConfig(model="w", model_path=str(tmp_path), parallel=parallel, max_queue=0)

    async def main() -> None:
        command = (sys.executable, "-m", "tests.unit.media.scripted_transcriber", str(tmp_path))
        runtime = WhisperRuntime(config, Transcriber(command))
        try:
            await body(runtime)
        finally:
            await runtime.close()

    tmp_path.joinpath("ended").touch()
    asyncio.run(main())


def test_it_says_what_it_is_once_it_is_loaded(tmp_path: Path):
    async def body(runtime: WhisperRuntime) -> None:
        with pytest.raises(ModelNotLoaded):
            _ = runtime.card
        assert runtime.health().state == "starting"
        card = await runtime.start()
        assert card is await runtime.start()
        assert card.transcription is not None
        assert (card.transcription.languages, card.can_generate) == (["de", "en"], False)
        assert card_capabilities(card).names == ("transcription",)
        assert (runtime.health().is_ready, runtime.health().state) == (True, "ready")
        await runtime.close()
        assert runtime.health().state == "closed"
        with pytest.raises(ModelNotLoaded):
            await anext(runtime.transcribe(RECORDING, Wish()))

    run(tmp_path, body)


def test_it_transcribes_within_its_bounds(tmp_path: Path):
    async def body(runtime: WhisperRuntime) -> None:
        await runtime.start()
        assert isinstance(runtime, Transcribes)
        first, second = (runtime.transcribe(RECORDING, Wish()) for _ in range(2))
        await anext(first)
        await anext(second)
        with pytest.raises(Overloaded):
            await anext(runtime.transcribe(RECORDING, Wish()))
        await first.aclose()
        assert len([each async for each in runtime.transcribe(RECORDING, Wish()) if isinstance(each, Segment)]) == 2
        await second.aclose()

    run(tmp_path, body)


def test_it_refuses_everything_else(tmp_path: Path):
    async def body(runtime: WhisperRuntime) -> None:
        await runtime.start()
        for refused in (lambda: runtime.render_chat([]), lambda: runtime.chat_format):
            with pytest.raises(UnsupportedParameter, match="audio/transcriptions"):
                refused()
        with pytest.raises(UnsupportedParameter):
            await runtime.ask(Tokenize("x"))
        with pytest.raises(UnsupportedParameter):
            await anext(runtime.generate(Submit("1", "x", SamplingParams())))
        assert (await runtime.ask(ChangeAdapters())).adapters == []

    run(tmp_path, body)


def test_a_model_that_cannot_be_loaded_has_failed(tmp_path: Path):
    tmp_path.joinpath("broken").touch()

    async def body(runtime: WhisperRuntime) -> None:
        with pytest.raises(BackendError):
            await runtime.start()
        health = runtime.health()
        assert (health.state, health.is_ready) == ("failed", False)
        assert health.last_error is not None

    run(tmp_path, body)
