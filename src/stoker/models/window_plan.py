"""How many tokens of layers with a window a pool keeps, and what that saves. Nothing is allocated here.

```
    a layer without a window   [ every token of the pool                                          ]
    a layer with one           [ the windows of those that run | an eighth of the pool ]
                                                                 of finished conversations, and checkpoints
```
"""

from __future__ import annotations

from dataclasses import dataclass

_RETAINED_PART = 8
"""One token of that many is kept for conversations that do not run: with a window of 1,000 tokens, one conversation of
8,000, or several that begin alike."""
_WORTHWHILE = 0.75
"""If windows need a larger part of the pool, they are kept whole: a later prompt can then go on anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowNeeds:
    """Layers that see only a window, of a model that has others too."""

    bytes_per_token: int
    """What these layers keep of a token."""
    running_tokens: int
    """What sequences that run keep in these layers, at most, however long they are."""

    def tokens(self, kv_tokens: int) -> int:
        """Tokens that these layers keep beside so many of the others; 0 = as many, so that nothing is saved."""
        wanted = self.running_tokens + kv_tokens // _RETAINED_PART
        return wanted if wanted <= _WORTHWHILE * kv_tokens else 0

    def affordable(self, num_bytes: int, bytes_per_token: int) -> int:
        """The largest pool, in tokens, that takes no more than so many bytes.

        Args:
            num_bytes: for all layers.
            bytes_per_token: of all layers.
        """
        whole = num_bytes // bytes_per_token
        rest = bytes_per_token - self.bytes_per_token
        left = num_bytes - self.running_tokens * self.bytes_per_token
        windowed = max(0, left) * _RETAINED_PART // (_RETAINED_PART * rest + self.bytes_per_token)
        return max(whole, windowed) if self.tokens(windowed) else whole
