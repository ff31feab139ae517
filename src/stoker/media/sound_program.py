"""The program that decodes one recording: a file on standard input, a letter and its samples on standard output.

Its argument is the number of samples per second of the result.
"""

from __future__ import annotations

import sys

from stoker.media.confined import confine
from stoker.media.decode_program import DONE, REFUSED

_CPU_S = 120


def main() -> None:
    """Decodes what is on standard input, with little of the machine and none of its files."""
    from stoker.media.sounds import SoundRefused, as_samples, import_formats

    import_formats()
    data = sys.stdin.buffer.read()
    confine(cpu_s=_CPU_S)
    try:
        answer = DONE + as_samples(data, int(sys.argv[1]))
    except SoundRefused as error:
        answer = REFUSED + str(error).encode("utf-8", "replace")
    sys.stdout.buffer.write(answer)


if __name__ == "__main__":
    main()
