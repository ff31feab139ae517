"""Spellings of a model's name that other programs have, and the one that is used here."""

from __future__ import annotations

import re

from stoker.models.catalog import HUB_PREFIX

HUB_NAME = re.compile(r"(?P<repo>[\w][\w.-]*/[\w][\w.-]*)(?::(?P<file>.+))?", re.ASCII)
"""A repository of the hub, perhaps with a file or a quantization."""
LATEST = ":latest"
HUB_WORDS = ("hf.co/", "huggingface.co/")


def own_name(name: str) -> str:
    """What this name means here.

    >>> own_name("smollm2:latest"), own_name("hf.co/org/repo:Q8_0")
    ('smollm2', 'hf:org/repo:Q8_0')
    """
    name = name.removesuffix(LATEST)
    hub = next((word for word in HUB_WORDS if name.startswith(word)), None)
    return name if hub is None else HUB_PREFIX + name.removeprefix(hub)
