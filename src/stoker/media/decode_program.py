"""The program that decodes one file: the file on standard input, a letter and an answer on standard output.

`python -m stoker.media.decode_program FORM SIZE`; see `decoder` and `documents` for forms and sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from stoker.media.confined import CPU_S, SOUND_CPU_S, FileRefused, confine
from stoker.media.verdicts import DONE, ONLY_LIMITED, REFUSED


def main() -> None:
    """Decodes what is on standard input, with little of the machine and none of its files."""
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
    """What decodes a file, with all imported that it will need."""
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
