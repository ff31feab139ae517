"""The metric families about images and recordings, one row for each. The module only reads counts."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.server.observe.metric_rows import Row, counter, gauge, of_encoder, of_transcriber

MEDIA_ROWS: Sequence[Row] = (
    gauge(
        "encoder_queue", "Parts of images and recordings being encoded or waiting", of_encoder(lambda of: of.num_queued)
    ),
    gauge(
        "encoder_kept_bytes", "Encoded rows of images and recordings in the cache", of_encoder(lambda of: of.kept_bytes)
    ),
    counter("encoder_parts", "Parts of images and recordings encoded", of_encoder(lambda of: of.num_encoded)),
    counter("encoder_seconds", "Time spent encoding images and recordings", of_encoder(lambda of: of.encode_s)),
    counter(
        "encoder_hits",
        "Parts of images and recordings whose encoded rows were found in the cache",
        of_encoder(lambda of: of.num_hits),
    ),
    counter(
        "encoder_crashes", "Crashes of the encoding process that a file caused", of_encoder(lambda of: of.num_crashes)
    ),
    gauge("transcriber_open", "Recordings being transcribed or waiting", of_transcriber(lambda of: of.num_open)),
    counter("transcriber_segments", "Segments of recordings transcribed", of_transcriber(lambda of: of.num_segments)),
    counter(
        "transcriber_audio_seconds", "Length of the audio that was transcribed", of_transcriber(lambda of: of.heard_s)
    ),
    counter("transcriber_seconds", "Time spent transcribing", of_transcriber(lambda of: of.compute_s)),
    counter(
        "transcriber_crashes",
        "Crashes of the transcription process that a recording caused",
        of_transcriber(lambda of: of.num_crashes),
    ),
)
