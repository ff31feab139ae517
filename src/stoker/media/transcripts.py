"""A finished transcript, and its conversion to subtitles in SRT and WebVTT format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from stoker.core.speech import Segment, Task

SubtitleFormat: TypeAlias = Literal["srt", "vtt"]
SUBTITLE_FORMATS: tuple[SubtitleFormat, ...] = get_args(SubtitleFormat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The transcript of one recording."""

    task: Task
    language: str
    """Code of the spoken language, such as `en`."""
    duration_s: float
    """Length of the recording, in seconds."""
    segments: Sequence[Segment]

    @property
    def text(self) -> str:
        """All segments as one text."""
        return "".join(segment.text for segment in self.segments).strip()

    def subtitles(self, format: SubtitleFormat) -> str:
        """The content of a subtitle file, with one subtitle for each segment."""
        mark = "," if format == "srt" else "."
        lines: list[str] = []
        for number, segment in enumerate(self.segments, start=1):
            times = f"{_clock(segment.start, mark)} --> {_clock(segment.end, mark)}"
            # An arrow in the text would be parsed as the times of another subtitle.
            text = segment.text.strip().replace("-->", "->")
            lines += [*([str(number)] if format == "srt" else []), times, text, ""]
        return "\n".join([*(["WEBVTT", ""] if format == "vtt" else []), *lines])


def _clock(seconds: float, mark: str) -> str:
    milliseconds = round(1000 * seconds)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    seconds_, milliseconds = divmod(milliseconds, 1000)
    return f"{hours:02}:{minutes:02}:{seconds_:02}{mark}{milliseconds:03}"
