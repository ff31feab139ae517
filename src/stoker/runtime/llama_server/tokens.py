"""`RemoteTokenizer`: tokenizes and detokenizes by asking llama-server, which supports every kind of vocabulary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeAlias

from stoker.engine.cards import FillTokens
from stoker.engine.prompt import FILL_SPELLINGS, fill_tokens
from stoker.engine.protocol import Prompt
from stoker.engine.question_messages import Tokenize, Tokenized
from stoker.engine.questions import ANSWER_S, MAX_QUESTIONS
from stoker.errors import Overloaded
from stoker.runtime.external.client import ServerClient, decode
from stoker.runtime.llama_server.wire import Piece, Text, Tokens

PromptPiece: TypeAlias = tuple[int, bytes | None]
"""A token id, with the token's bytes; None = the token was given as an id, and its bytes are unknown."""

_SAMPLE = "a"
_AT_A_TIME = 4
"""Maximum number of concurrent requests, each of which occupies one of llama-server's HTTP threads."""


class RemoteTokenizer:
    """The tokenizer of one model in llama-server. Belongs to one event loop.

    Args:
        client: returns the client of the present server; raises `ModelNotLoaded` if there is none.
    """

    def __init__(self, client: Callable[[], ServerClient]) -> None:
        self._client = client
        self._turns = asyncio.Semaphore(_AT_A_TIME)
        self._num_waiting = 0
        self._bos: Piece | None = None
        self.num_suffix = 0
        """Number of special tokens that the model expects at the end of a text to embed."""

    @property
    def bos_token_id(self) -> int | None:
        """The id of the BOS token; None = the model's prompts begin without BOS."""
        return None if self._bos is None else self._bos.id

    @property
    def bos_text(self) -> str:
        """The text of the BOS token; empty = the model's prompts begin without BOS."""
        return "" if self._bos is None else self._bos.raw.decode("utf-8", "replace")

    async def learn(self, bos_token: str) -> None:
        """Finds out which special tokens the model expects around a text, by tokenizing a sample.

        Args:
            bos_token: the text of the BOS token.
        """
        plain = await self._tokens(_SAMPLE, add_special=False, parse_special=True)
        framed = await self._tokens(_SAMPLE, add_special=True, parse_special=True)
        num_prefix = next((n for n in range(len(framed)) if framed[n : n + len(plain)] == plain), 0)
        self.num_suffix = max(0, len(framed) - num_prefix - len(plain))
        is_wanted = num_prefix > 0 and bool(bos_token) and framed[0].raw == bos_token.encode()
        self._bos = framed[0] if is_wanted else None

    async def find_fill_tokens(self) -> FillTokens | None:
        """See `engine.prompt.find_fill_tokens`."""
        text = "\n".join(FILL_SPELLINGS)
        tokens = await self._tokens(text, add_special=False, parse_special=True)
        plain = {token.id for token in await self._tokens(text, add_special=False, parse_special=False)}
        special = {token.raw.decode("utf-8", "replace"): token.id for token in tokens if token.id not in plain}
        return fill_tokens(special.get)

    async def pieces(
        self, text: str, *, parse_special: bool = True, wants_bos: bool = True, add_special: bool = False
    ) -> list[Piece]:
        """The tokens of a text.

        Args:
            text: the text to tokenize.
            parse_special: the text of a special token becomes that token.
            wants_bos: add BOS in front, if the model expects it and the text does not begin with it.
            add_special: add all special tokens that the model expects around a text; `wants_bos` is then ignored.

        Raises:
            BrokenOff: the server is gone.
            StokerError: the text is not valid Unicode, or the model cannot answer now.
        """
        tokens = await self._tokens(text, add_special=add_special, parse_special=parse_special)
        if not wants_bos or add_special or self._bos is None or (tokens and tokens[0].id == self._bos.id):
            return tokens
        return [self._bos, *tokens]

    async def answer(self, question: Tokenize) -> Tokenized:
        """The tokens of a question's text. See `pieces`."""
        pieces = await self.pieces(question.text, wants_bos=question.wants_bos, parse_special=question.parse_special)
        return Tokenized(question.question_id, [piece.id for piece in pieces], [piece.raw for piece in pieces])

    async def prompt_tokens(self, prompt: Prompt, *, parse_special: bool) -> list[PromptPiece]:
        """The tokens of a prompt. A prompt of ids only stays as it is; one with text gets BOS if the model expects it.

        Raises:
            StokerError: see `pieces`.
        """
        parts = [prompt] if isinstance(prompt, str) else prompt
        found: list[PromptPiece] = []
        for part in parts:
            if isinstance(part, int):
                found.append((part, None))
            else:
                tokens = await self._tokens(part, add_special=False, parse_special=parse_special)
                found += ((token.id, token.raw) for token in tokens)
        has_text = any(isinstance(part, str) for part in parts)
        if not has_text or self._bos is None or (found and found[0][0] == self._bos.id):
            return found
        return [(self._bos.id, self._bos.raw), *found]

    async def biases(self, text_bias: Mapping[str, float]) -> dict[int, float]:
        """Logit biases by token id: each text's bias applies to all tokens of the text."""
        return {
            token.id: bias
            for text, bias in text_bias.items()
            for token in await self._tokens(text, add_special=False, parse_special=False)
        }

    async def text(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, whose ids must be in the vocabulary; special tokens are written out."""
        async with self._turn():
            body = await self._client().post("/detokenize", {"tokens": list(token_ids)}, ANSWER_S)
        return decode(body, Text, "llama-server's text of tokens").content

    async def _tokens(self, text: str, *, add_special: bool, parse_special: bool) -> list[Piece]:
        asked = {"content": text, "add_special": add_special, "parse_special": parse_special, "with_pieces": True}
        async with self._turn():
            body = await self._client().post("/tokenize", asked, ANSWER_S)
        return decode(body, Tokens, "llama-server's tokens").tokens

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None, None]:
        """Limits concurrent requests to the server. Raises Overloaded if too many wait already."""
        if self._num_waiting >= MAX_QUESTIONS:
            raise Overloaded(f"{MAX_QUESTIONS} questions to the model are waiting already", retry_after_s=1.0)
        self._num_waiting += 1
        try:
            async with self._turns:
                yield
        finally:
            self._num_waiting -= 1
