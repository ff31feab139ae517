"""Regular expressions for pre-tokenizers whose Unicode classes have the same meaning as in libllama.

Both sides use Unicode tables, but of different versions: libllama 15.1, and `tokenizers` (with the engine Oniguruma)
16.0. Characters that 16.0 added are removed from the classes here, so that they count as unassigned.
"""

from __future__ import annotations

import re

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

_LATER = (
    r"\x{0897}\x{1b4e}-\x{1b4f}\x{1b7f}\x{1c89}-\x{1c8a}\x{2427}-\x{2429}\x{31e4}-\x{31e5}\x{a7cb}-\x{a7cd}"
    r"\x{a7da}-\x{a7dc}\x{105c0}-\x{105f3}\x{10d40}-\x{10d8f}\x{10ec2}-\x{10efc}\x{11380}-\x{113e2}"
    r"\x{116d0}-\x{116e3}\x{11bc0}-\x{11bf9}\x{11f5a}\x{13460}-\x{143fa}\x{16100}-\x{16139}\x{16d40}-\x{16d79}"
    r"\x{18cff}\x{1cc00}-\x{1ceb3}\x{1e5d0}-\x{1e5ff}\x{1f8b2}-\x{1f8c1}\x{1fa89}-\x{1fa8f}\x{1fabe}\x{1fac6}"
    r"\x{1fadc}-\x{1fadf}\x{1fae9}\x{1fbcb}-\x{1fbef}"
)
"""Characters that Unicode 16.0 added. The ranges may include characters that are still unassigned."""

_HAN = r"\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{20000}-\x{2a6df}\x{2a700}-\x{2ebef}\x{f900}-\x{faff}\x{2f800}-\x{2fa1f}"

_CLASSES = {
    "L": rf"[\p{{L}}&&[^{_LATER}]]",
    "N": rf"[\p{{N}}&&[^{_LATER}]]",
    "P": rf"[\p{{P}}&&[^{_LATER}]]",
    "M": rf"[\p{{M}}&&[^{_LATER}]]",
    "S": rf"[\p{{S}}&&[^{_LATER}]]",
    "Upper": rf"[\p{{L}}&&[^a-z{_LATER}]]",
    "Lower": rf"[\p{{L}}&&[^A-Z{_LATER}]]",
    "UpperM": rf"[[\p{{L}}\p{{M}}]&&[^a-z{_LATER}]]",
    "LowerM": rf"[[\p{{L}}\p{{M}}]&&[^A-Z{_LATER}]]",
    "Han": rf"[{_HAN}]",
    "LNotHan": rf"[\p{{L}}&&[^{_HAN}{_LATER}]]",
}
_PLAIN_CLASSES = {
    "Upper": r"[\p{L}&&[^a-z]]",
    "Lower": r"[\p{L}&&[^A-Z]]",
    "UpperM": r"[[\p{L}\p{M}]&&[^a-z]]",
    "LowerM": r"[[\p{L}\p{M}]&&[^A-Z]]",
    "Han": rf"[{_HAN}]",
    "LNotHan": rf"[\p{{L}}&&[^{_HAN}]]",
}
_CLASS_NAME = re.compile(r"\\p\{(\w+)\}")


def compile_pattern(pattern: str) -> Regex:
    r"""An Oniguruma expression in which `\p{L}`, `\p{N}`, `\p{P}`, `\p{M}`, `\p{S}` have their meaning in libllama.

    Additional classes: `\p{Upper}` and `\p{Lower}` are letters, except for ASCII letters of the other case (`UpperM`
    and `LowerM`: letters and marks), `\p{Han}` Chinese characters, `\p{LNotHan}` all other letters.
    """
    return Regex(_CLASS_NAME.sub(lambda match: _CLASSES.get(match[1], match[0]), pattern))


def plain_pattern(pattern: str) -> str:
    """The expression for another regex engine: additional classes are expanded, others mean what they mean there."""
    return _CLASS_NAME.sub(lambda match: _PLAIN_CLASSES.get(match[1], match[0]), pattern)


class CharacterClass:
    """The set of characters of a class such as `\\p{P}` or `[\\p{L}0-9]`, for membership tests."""

    def __init__(self, pattern: str) -> None:
        self._outside = Split(compile_pattern(pattern), behavior="removed")

    def __contains__(self, character: str) -> bool:
        return not self._outside.pre_tokenize_str(character)
