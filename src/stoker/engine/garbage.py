"""The garbage collector while a process starts: next to nothing of what is made then is garbage, and looking for it
takes a tenth of the time. Afterwards it looks at new things only.
"""

from __future__ import annotations

import gc

_USUAL = gc.get_threshold()
_RARELY = 100_000
"""New objects between two looks: what is garbage nevertheless stays bounded."""


def look_rarely() -> None:
    """Makes collections rare until `settle` or `look_as_usual`, one of which the caller must call."""
    gc.set_threshold(_RARELY, *_USUAL[1:])


def look_as_usual() -> None:
    """At everything."""
    gc.set_threshold(*_USUAL)


def settle() -> None:
    """The start is over. What there is now will stay, and is not looked at again."""
    gc.freeze()
    look_as_usual()
