"""The program that decodes one untrusted file: reads it from standard input, writes a status byte and the result.

Usage: `python -m stoker.media.decode_program FORM SIZE`; see `decoder` and `documents` for forms and sizes, and
`verdicts` for the status byte.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from stoker.media.confined import CPU_S, SOUND_CPU_S, FileRefused, confine
from stoker.media.verdicts import DONE, ONLY_LIMITED, REFUSED


def main() -> None:
    """Decodes the file on standard input in a confined process (see `confine`), and writes the result."""
    form, size = sys.argv[1], int(sys.argv[2])
    convert = _converter(form, size)
    data = sys.stdin.buffer.read()
    is_confined = confine(cpu_s=SOUND_CPU_S if form == "samples" else CPU_S)
    try:
        answer = DONE + convert(data)
    except FileRefused as error:
        answer = REFUSED + str(error).encode("utf-8", "replace")
    sys.stdout.buffer.write(answer if is_confined else ONLY_LIMITED + answer)


def _converter(form: str, size: int) -> Callable[[bytes], bytes]:
    """The function that decodes a file, with all modules that it needs imported: `confine` forbids later imports."""
    if form == "samples":
        from stoker.media import sounds

        sounds.import_formats()
        return partial(sounds.as_samples, rate=size)
    if form == "pages":
        from stoker.media import pdf

        pdf.import_formats()
        return partial(pdf.as_pages, side=size)
    from stoker.media import images

    images.import_formats()
    return partial(images.as_png if form == "png" else images.as_pixels, longest=size)


if __name__ == "__main__":
    main()
