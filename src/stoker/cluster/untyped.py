"""The modules `ray` and `ray.serve` as untyped values, because Ray's own types are partly unknown or wrong."""

from __future__ import annotations

from typing import Any, cast

import ray as _ray
from ray import serve as _serve

ray = cast("Any", _ray)
serve = cast("Any", _serve)
