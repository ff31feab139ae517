"""The program that decodes one image: a file on standard input, a letter and an answer on standard output.

Its argument says what is wanted: `png` or `pixels`.
"""

from __future__ import annotations

import resource
import sys

DONE, REFUSED = b"+", b"-"
_MEMORY_BYTES = 2 << 30
_CPU_S = 30


def main() -> None:
    """Decodes what is on standard input, with little of the machine and none of its files."""
    from stoker.media.images import ImageRefused, as_pixels, as_png

    data = sys.stdin.buffer.read()
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_CPU, _CPU_S)
    _lower(resource.RLIMIT_AS, _MEMORY_BYTES)
    try:
        answer = DONE + (as_pixels(data) if sys.argv[1:] == ["pixels"] else as_png(data))
    except ImageRefused as error:
        answer = REFUSED + str(error).encode("utf-8", "replace")
    sys.stdout.buffer.write(answer)


def _lower(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, limit))


if __name__ == "__main__":
    main()
