"""The metrics about images and recordings in `/metrics`: one row for each family. This module counts nothing."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.server.observe.metric_rows import Row, counter, gauge, of_encoder, of_transcriber

MEDIA_ROWS: Sequence[Row] = (
    gauge(
        "encoder_queue", "Parts of images and recordings being encoded or waiting", of_encoder(lambda of: of.num_queued)
    ),
    gauge("encoder_kept_bytes", "Rows of images and recordings that are kept", of_encoder(lambda of: of.kept_bytes)),
    counter("encoder_parts", "Parts of images and recordings encoded", of_encoder(lambda of: of.num_encoded)),
    counter("encoder_seconds", "Time spent encoding images and recordings", of_encoder(lambda of: of.encode_s)),
    counter("encoder_hits", "Parts whose rows were there when they were needed", of_encoder(lambda of: of.num_hits)),
    counter("encoder_crashes", "Ends of the encoding process caused by a file", of_encoder(lambda of: of.num_crashes)),
    gauge("transcriber_open", "Recordings being transcribed or waiting", of_transcriber(lambda of: of.num_open)),
    counter("transcriber_segments", "Segments of recordings transcribed", of_transcriber(lambda of: of.num_segments)),
    counter("transcriber_audio_seconds", "Length of what was transcribed", of_transcriber(lambda of: of.heard_s)),
    counter("transcriber_seconds", "Time spent transcribing", of_transcriber(lambda of: of.compute_s)),
    counter(
        "transcriber_crashes",
        "Ends of the transcribing process caused by a recording",
        of_transcriber(lambda of: of.num_crashes),
    ),
)
