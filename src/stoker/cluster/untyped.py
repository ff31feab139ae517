"""Ray and its Serve as values without types: theirs are partly unknown, and some are wrong."""

from __future__ import annotations

from typing import Any, cast

import ray as _ray
from ray import serve as _serve

ray = cast("Any", _ray)
serve = cast("Any", _serve)
