"""The program that reads one PDF file: the file on standard input, a letter and its pages on standard output.

Its argument is the longer side of the images of pages, in pixels; 0 = only the text is wanted.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys

import msgspec

from stoker.media.confined import confine
from stoker.media.decode_program import DONE, REFUSED

_OPTIONAL = ("json", "datetime", "brotli", "fontTools.cffLib", "fontTools.ttLib", "arabic_reshaper", "bidi.algorithm")
"""What pypdf uses if it is there."""


def main() -> None:
    """Reads what is on standard input, with little of the machine and none of its files."""
    from stoker.media.pdf import DocumentRefused, read_pdf

    _import_the_rest()
    data, side = sys.stdin.buffer.read(), int(sys.argv[1])
    confine()
    try:
        answer = DONE + msgspec.msgpack.encode(read_pdf(data, side or None))
    except DocumentRefused as error:
        answer = REFUSED + str(error).encode("utf-8", "replace")
    sys.stdout.buffer.write(answer)


def _import_the_rest() -> None:
    """Imports what is otherwise imported when it is first needed: by then no file can be opened."""
    import encodings

    import pypdf

    from stoker.media.images import import_formats

    import_formats()
    for name in _OPTIONAL:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for package in (encodings, pypdf):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            with contextlib.suppress(ImportError):  # of another system, or of a library that is not installed
                importlib.import_module(module.name)


if __name__ == "__main__":
    main()
