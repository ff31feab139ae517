"""Log-probabilities in the shapes of OpenAI's two generation APIs."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from stoker.engine.protocol import Output, PositionLogprobs, TokenLogprob
from stoker.server.dialects.openai.types import ChatLogprob, ChatLogprobs, CompletionLogprobs, TopLogprob
from stoker.server.logprobs import text_positions


def chat_logprobs(output: Output) -> ChatLogprobs | None:
    """None if the output has no positions to report."""
    positions = text_positions(output)
    return ChatLogprobs([_chat_position(position) for position in positions]) if positions else None


def _chat_position(position: PositionLogprobs) -> ChatLogprob:
    chosen = position.chosen
    top = [TopLogprob(_text(token), token.logprob, list(token.token)) for token in position.top]
    return ChatLogprob(_text(chosen), chosen.logprob, list(chosen.token), top)


class TextOffsets:
    """Where each token of one answer begins, in characters, also when a character takes several tokens."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def push(self, output: Output) -> CompletionLogprobs | None:
        """The log-probabilities of one output, its echo of the prompt included; None if it has none to report."""
        positions = text_positions(output)
        prompt = output.prompt or ()
        if not (positions or prompt):
            return None
        tokens = [*(token.token for token in prompt), *(position.chosen.token for position in positions)]
        # Of the prompt, what is not in the text has no bytes.
        added = [*(token.token for token in prompt), *(p.chosen.token if p.is_text else b"" for p in positions)]
        return CompletionLogprobs(
            tokens=[token.decode("utf-8", "replace") for token in tokens],
            token_logprobs=[*(t.logprob for t in prompt), *(position.chosen.logprob for position in positions)],
            top_logprobs=[
                *(None if token.logprob is None else _top(token.top) for token in prompt),
                *(_top(position.top) for position in positions),
            ],
            text_offset=[self._begin(raw) for raw in added],
        )

    def _begin(self, raw: bytes) -> int:
        begin = self._offset
        self._offset += len(self._decoder.decode(raw))
        return begin


def _top(tokens: Sequence[TokenLogprob]) -> dict[str, float]:
    """Log-probabilities by token text, as in the API. Of tokens with the same text, the likeliest counts."""
    return {_text(token): token.logprob for token in reversed(tokens)}


def _text(token: TokenLogprob) -> str:
    return token.token.decode("utf-8", "replace")
