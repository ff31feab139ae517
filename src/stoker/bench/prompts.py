"""Prompts of a given length that no cache has seen: seeded words, each one token in common vocabularies."""

from __future__ import annotations

import random

# Each word with a space before it is one token for SmolLM2 and Gemma 3, and so for most vocabularies with English.
_LISTED = """
time year people way day man thing woman life child world school state family student group country problem hand part
place case week company system program question work government number night point home water room mother area money
story fact month lot right study book eye job word business issue side kind head house service friend father power hour
game line end member law car city community name president team minute idea body information back parent face others
level office door health person art war history party result change morning reason research girl guy moment air teacher
force education foot boy age policy music food paper sea river mountain island forest garden field road street bridge
tower castle village town market shop bank hospital church library museum station airport hotel restaurant kitchen table
chair window wall floor roof stone wood iron gold silver glass light dark sun moon star sky cloud rain snow wind fire
earth tree flower leaf grass seed fruit apple orange bread milk cheese meat fish bird horse dog cat cow sheep lion bear
wolf fox rabbit snake king queen soldier doctor nurse lawyer engineer artist writer actor singer farmer driver captain
pilot letter message phone radio film picture color blue green red white black yellow brown small large great little
long short high low young old new good bad early late first last next same different important public able free real
best better full special clear recent certain strong possible whole main common single final simple open close hard
easy fast slow warm cold hot dry wet clean quiet loud deep wide narrow heavy soft sharp sweet fresh
"""
_WORDS = _LISTED.split()


class Prompts:
    """Random texts that depend only on names: the same names give the same texts, other names unrelated ones.

    Args:
        names: the parts of the random seed, for instance seed, scenario and repetition.
    """

    def __init__(self, *names: str | int) -> None:
        self._random = random.Random("/".join(map(str, names)))

    def text(self, num_words: int) -> str:
        """`num_words` words, each with a space before it; two texts share no prefix long enough for a prefix cache."""
        return "".join(f" {word}" for word in self._random.choices(_WORDS, k=num_words))
