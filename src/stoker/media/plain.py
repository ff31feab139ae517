"""The format of decoded files on a pipe. Pixels: width and height, then RGB, row after row. Samples: one channel."""

from __future__ import annotations

import struct

SIZES = struct.Struct("<II")
"""Width and height in pixels."""
MAX_PIXELS = 64_000_000
"""Maximum number of pixels of an image."""
BYTES_OF_SAMPLE = 4
"""Size of an audio sample in bytes; a sample is a float between -1 and 1."""
MAX_S = 30 * 60.0
"""Maximum length of a recording, in seconds."""
