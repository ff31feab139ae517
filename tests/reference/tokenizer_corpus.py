"""Texts that tell tokenizers apart: code, many scripts, emoji, control characters, runs of spaces, broken UTF-8."""

from __future__ import annotations

import random
from pathlib import Path

_ROOT = Path(__file__).parents[2]

PROSE = [
    "The quick brown fox jumps over the lazy dog. It's 3:45pm, isn't it? We'LL see; THEY'RE late, I'd say 'so'.",
    "Er sagte: „Grüße aus Köln!“ – 1.234.567,89 € kosten 12345678 Schrauben (ca. 5 % mehr als 2023).",
    "L'été dernier, j'ai vu l'Œuvre naïve d'À-propos… ¡Qué señor! ¿Dónde está? Straße ǅ ǈ ﬁ ŉ",
    "Съешь ещё этих мягких французских булок, да выпей чаю. Ἀνερρίφθω κύβος, τὸ ἕν.",
    "自然语言处理是人工智能的一个重要方向。価格は１２３４５円（税込）です！ ﾊﾝｶｸ カタカナ 한국어",
    "텍스트입니다. ㄱㄴㄷ ㄅㄆㄇ",
    "العربية: مرحبا بالعالم ١٢٣٤٥٦، كيف الحال؟ עברית: שָׁלוֹם עוֹלָם ۱۲۳۴۔ اردو",
    "नमस्ते दुनिया, हिन्दी में १२३४ बातें। বাংলা ভাষা தமிழ் ไทยภาษาไทย๑๒๓ ລາວ ខ្មែរ မြန်မာ ქართული ᏣᎳᎩ ᚠᚢᚦ",
    "x² + y³ = z⁴ ∑∞ ½ Ⅷ ⅷ ㊿ ₁₂₃ €£¥₿ ±×÷ ≠≤≥ ^ ` ~ | $ + < = > ~a `b` ^c |d",
    "e\u0301le\u0300ve Z\u0337\u0334a\u0335l\u0336g\u0337o a\u0308\u0308 \u0301leading \u200dzwj",
    "\u200bzwsp soft\u00adhyphen",
    "👨‍👩‍👧‍👦 family, flags 🇪🇺🇩🇪, skin 👍🏽, 🏳️‍🌈 ❤️ ☎ 😀😃😄 keycap 1️⃣ 🫠🪿🩷 🫩",
    "IMGIMGABCDZ IMGIMGIZ <sentinel:12> <0x41> <|not_special|> ▁low ▁▁blocks Ġ Ċ",
    "1 12 123 1234 12345 123456 1234567 12345678a 123abc4567 1,000,000.25 0x1F600 3.14e-10 ١٢٣12 ²³4 12٣٤5",
    "don't DON'T Don'T 's 'S 'll 'LL 've'VE 'x a'b'c ''s 're'd'm ' s",
]
CODE = [
    'def f(x: int) -> str:\n    if x == 0:\n\t\treturn f"{x!r}\\n"  # noqa: E501\n\n\n    return x ** 2 // 3\r\n',
    "for (size_t i = 0; i < n; ++i) { a[i] += b[i] * 0.5f; } /* done */ // €\n#include <vector>\n",
    '{"key": [1, 2.5e-3, null], "ключ": "值\\u00e9", "nested": {"a": {"b": {}}}}\n',
    "<html><body class='x'>&nbsp;<ul><li>one</li></ul></body></html> <unused <unused0 <u>",
    "SELECT * FROM t WHERE a='b' AND c IN (1,22,333,4444); -- ===== *** ___ ...\n\n\n\n",
]
SPACES = [
    " ", "  ", "   ", " \n", "\n ", "\n\n", "\r\n\r\n", "\t\t", "a ", " a", "a  ", "  a", "a  b   c    d",
    "a\n\n\nb\n \n c \r\n\r d\t\te \t f", "x" + " " * 70 + "y", "x" + "\n" * 40 + "y" + "\t" * 35, " " * 33, "\n" * 33,
    "nbsp\u00a0\u00a0em\u2003\u2003ideographic\u3000\u3000nel\x85ls\u2028ps\u2029ogham\u1680 \u00a0 mixed \u3000",
    "trailing \u00a0", "a \u3000", "\u3000。、\u3000", "\x0b\x0c\x1c\x1d\x1e\x1f", " \x0b ",
]  # fmt: skip
ODD = [
    "", "a", "NUL \x00 in the middle\x00", "\x01\x02\x1b[31m\x7f\x80\x9f", "\ufeffbom \ufffe\uffff \U0010ffff \ue000",
    "a" * 300, "ab" * 150, "aaa" * 7 + "b" * 9, "=" * 80, "9" * 50, "🙂" * 20, "é" * 40, "が" * 30 + "か\u3099" * 5,
    "\ufffd\ufffd broken", "𝔘𝔫𝔦 𐐀𐐨 𞤀𞤢 🄀 𝟘𝟙𝟚 \U0001e4f0\U00011f50 \U00010d40\U000113d4\U0001fae9 \u0378",
]  # fmt: skip
CORPUS = [*PROSE, *CODE, *SPACES, *ODD]


def random_texts(count: int, seed: int) -> list[str]:
    """Texts made of broken bytes, of any characters, and of pieces of the corpus."""
    source = random.Random(seed)
    letters = "".join(CORPUS)
    made: list[str] = []
    for number in range(count):
        length = source.randint(1, 60)
        if number % 3 == 0:
            made.append(source.randbytes(length).decode(errors="replace"))
        elif number % 3 == 1:
            codes = (source.randrange(source.choice((0x300, 0x3100, 0x20000, 0x110000))) for _ in range(length))
            made.append("".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000))
        else:
            starts = (source.randrange(len(letters)) for _ in range(6))
            made.append("".join(letters[start : start + source.randint(1, 8)] for start in starts))
    return made


def repository_text() -> str:
    """Some English and some code that is there anyway."""
    return (_ROOT / "docs/architecture.md").read_text() + (_ROOT / "src/stoker/core/scheduler.py").read_text()
