"""Plain pixels on a pipe: their width and height, and then RGB, row after row."""

from __future__ import annotations

import struct

SIZES = struct.Struct("<II")
"""Width and height in pixels."""
