"""The program that decodes one image: a file on standard input, a letter and an answer on standard output.

Its argument says what is wanted: `png` or `pixels`.
"""

from __future__ import annotations

import sys

from stoker.media.confined import confine

DONE, REFUSED = b"+", b"-"


def main() -> None:
    """Decodes what is on standard input, with little of the machine and none of its files."""
    from stoker.media.images import ImageRefused, as_pixels, as_png, import_formats

    import_formats()
    data = sys.stdin.buffer.read()
    confine()
    try:
        answer = DONE + (as_pixels(data) if sys.argv[1:] == ["pixels"] else as_png(data))
    except ImageRefused as error:
        answer = REFUSED + str(error).encode("utf-8", "replace")
    sys.stdout.buffer.write(answer)


if __name__ == "__main__":
    main()
