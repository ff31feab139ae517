"""`stoker transcribe`: converts recorded speech to text with a Whisper model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stoker.cli.answer import flush, write
from stoker.cli.download_bar import DownloadBar
from stoker.cli.options import Flags, shared_options
from stoker.cli.report import say
from stoker.errors import InvalidInput

if TYPE_CHECKING:
    from stoker.core.speech import Wish
    from stoker.llm.transcriber import Transcriber
    from stoker.media.transcripts import Transcript

WhisperModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", show_default=False, help="Folder of a Whisper model in CTranslate2's format, with model.bin."
    ),
]
Recordings = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", show_default=False, help="Recordings: WAV, MP3, FLAC, OGG, M4A or WebM."),
]
FormatOption = Annotated[
    Literal["text", "srt", "vtt", "json"],
    typer.Option(
        "--format",
        "-f",
        show_default=False,
        help="text, subtitles (srt, vtt), or json with the times of all segments. [default: text]",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FOLDER",
        show_default=False,
        help="Folder for one file per recording, with its name. [default: stdout]",
    ),
]
Language = Annotated[
    str,
    typer.Option(
        "--language", metavar="CODE", show_default=False, help="Spoken language, such as en. [default: detected]"
    ),
]
Translate = Annotated[bool, typer.Option("--translate", help="Translate into English.")]
GivenPrompt = Annotated[
    str,
    typer.Option(
        "--prompt",
        metavar="TEXT",
        show_default=False,
        help="Text that precedes the recording, as a hint for names and style.",
    ),
]
Words = Annotated[bool, typer.Option("--words", help="With json: the time of each word.")]
Silence = Annotated[bool, typer.Option("--skip-silence", help="Skip silence and noise.")]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=512,
        show_default=False,
        metavar="N",
        help="Number of CPU threads. [default: one per physical core]",
    ),
]


@shared_options()
def transcribe(
    flags: Flags,
    model: WhisperModel,
    files: Recordings,
    format: FormatOption = "text",
    output: Output = None,
    language: Language = "",
    translate: Translate = False,
    prompt: GivenPrompt = "",
    words: Words = False,
    skip_silence: Silence = False,
    threads: Threads = None,
) -> None:
    """Transcribe recordings with a Whisper model. Text is printed as soon as it is recognized."""
    from stoker.llm.transcriber import Transcriber
    from stoker.media.transcribing import Wish

    if words and format != "json":
        raise InvalidInput("--words needs --format json", parameter="words")
    if format == "json" and output is None and len(files) > 1:
        raise InvalidInput("--format json writes one document: give one FILE, or --output FOLDER", parameter="output")
    wish = Wish(
        task="translate" if translate else "transcribe",
        language=language.lower(),
        prompt=prompt,
        has_words=words,
        skips_silence=skip_silence,
    )
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    with Transcriber(model, threads=threads, progress=DownloadBar()) as transcriber:
        for file in files:
            pieces = _written(transcriber, file, wish, format)
            if output is None:
                for piece in pieces:
                    write(piece)
                    flush()
            else:
                path = output / f"{file.stem}.{'txt' if format == 'text' else format}"
                path.write_text("".join(pieces), encoding="utf-8")
                say(f"wrote {path}")


def _written(
    transcriber: Transcriber, file: Path, wish: Wish, format: Literal["text", "srt", "vtt", "json"]
) -> Iterator[str]:
    """The transcript of a file, in pieces."""
    from stoker.media.transcribing import Segment

    if format == "text":
        for found in transcriber.stream(file, wish):
            if isinstance(found, Segment):
                yield found.text.strip() + "\n"
        return
    transcript = transcriber.whole(file, wish)
    yield _json(transcript) if format == "json" else transcript.subtitles(format)


def _json(transcript: Transcript) -> str:
    import msgspec

    about = {"task": transcript.task, "language": transcript.language, "duration": transcript.duration_s}
    found = {**about, "text": transcript.text, "segments": transcript.segments}
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"
