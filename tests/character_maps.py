"""Tables of characters as SentencePiece compiles them: what a text's characters become before it is cut."""

from __future__ import annotations

from collections.abc import Mapping

_BLOCK = 256
_IS_END, _IS_TEXT = 1 << 8, 1 << 31


def compiled(replacements: Mapping[str, str]) -> bytes:
    """The table. Each node of the trie has a block of its own for its children, which wastes memory and is simple."""
    texts, places = b"", dict[str, int]()
    for text in replacements.values():
        if text not in places:
            places[text] = len(texts)
            texts += text.encode() + b"\0"
    keys = {key.encode(): places[text] for key, text in replacements.items()}
    prefixes = sorted({key[:end] for key in keys for end in range(len(key) + 1)}, key=len)
    blocks = {prefix: _BLOCK * (1 + index) for index, prefix in enumerate(prefixes)}
    entries = [0] * (_BLOCK * (1 + len(prefixes)))
    for prefix in prefixes:
        at = blocks[prefix[:-1]] ^ prefix[-1] if prefix else 0
        byte = prefix[-1] if prefix else 0
        entries[at] = (at ^ blocks[prefix]) << 10 | byte | (_IS_END if prefix in keys else 0)
        if prefix in keys:
            entries[blocks[prefix]] = _IS_TEXT | keys[prefix]
    table = b"".join(entry.to_bytes(4, "little") for entry in entries)
    return len(table).to_bytes(4, "little") + table + texts
