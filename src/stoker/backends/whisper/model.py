"""Speech recognition: Whisper models in CTranslate2's format, on faster-whisper. It gets samples, not audio files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stoker.core.speech import Segment, SpeechInfo, Wish, Word
from stoker.errors import InvalidInput, ModelFileInvalid

_TEMPERATURES = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
"""Temperatures that are tried in turn if a text is repetitive or unlikely, as in OpenAI's program."""


class WhisperModel:
    """A loaded Whisper model. Only one thread uses it.

    Args:
        folder: the folder of the model; see `models.whisper_folder`.
        threads: number of threads that compute.
        is_cpu_only: whether the model runs on the CPU even if there is a GPU.

    Raises:
        ModelFileInvalid: a file of the folder is damaged.
    """

    def __init__(self, folder: Path, *, threads: int, is_cpu_only: bool) -> None:
        from faster_whisper import WhisperModel as Loaded

        device = "cpu" if is_cpu_only else "auto"
        try:
            # `auto` takes 8-bit weights where the device has no better half precision.
            self._model: Any = Loaded(
                str(folder), device=device, compute_type="auto", cpu_threads=threads, local_files_only=True
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise ModelFileInvalid(f"{folder} cannot be loaded: {error}", path=str(folder)) from error
        self.info = SpeechInfo(
            languages=sorted(self._model.supported_languages),
            sample_rate=int(self._model.feature_extractor.sampling_rate),
            can_translate=bool(self._model.model.is_multilingual),
        )

    def begin(self, samples: bytes, wish: Wish) -> tuple[str, Iterator[Segment]]:
        """Returns the spoken language, and an iterator that computes each segment when it is requested.

        Args:
            samples: one channel of 4-byte floats with the sample rate `info.sample_rate`.
            wish: the task, language and other parameters of the transcription.

        Raises:
            InvalidInput: the model does not support the language.
        """
        temperature = wish.temperature or _TEMPERATURES
        try:
            segments, info = self._model.transcribe(
                np.frombuffer(samples, "<f4"),
                task=wish.task,
                language=wish.language or None,
                initial_prompt=wish.prompt or None,
                hotwords=wish.keywords or None,
                temperature=temperature,
                word_timestamps=wish.has_words,
                vad_filter=wish.skips_silence,
            )
        except ValueError as error:
            raise InvalidInput(f"it cannot be transcribed: {error}") from error
        return info.language, map(_segment, segments)


def _segment(found: Any) -> Segment:
    words = None if found.words is None else [_word(word) for word in found.words]
    return Segment(
        id=found.id - 1,
        seek=int(found.seek),
        start=float(found.start),
        end=float(found.end),
        text=found.text,
        tokens=[int(token) for token in found.tokens],
        temperature=float(found.temperature or 0.0),
        avg_logprob=float(found.avg_logprob),
        compression_ratio=float(found.compression_ratio),
        no_speech_prob=float(found.no_speech_prob),
        words=words,
    )


def _word(found: Any) -> Word:
    return Word(float(found.start), float(found.end), found.word, float(found.probability))
