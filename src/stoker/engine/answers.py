"""Answers the questions that cost no forward pass: about texts and tokens, slots, sessions, KV blocks, adapters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from stoker.core.batch import Entry
from stoker.core.pool import prefix_of
from stoker.core.scheduler import Scheduler
from stoker.engine.adapters import Adapters
from stoker.engine.block_ledger import BlockLedger
from stoker.engine.prompt import entries_of
from stoker.engine.protocol import AnswerEvent
from stoker.engine.question_messages import (
    AdapterList,
    BlocksHeld,
    ChangeAdapters,
    CountTokens,
    Detokenize,
    Detokenized,
    EndReasoning,
    EndSession,
    Erased,
    EraseSlots,
    Glimpse,
    KVShare,
    ListSessions,
    ListSlots,
    Look,
    LookAtBlocks,
    PrefixText,
    QuickQuestion,
    ReadPrefix,
    ReasoningEnded,
    RestoreSlot,
    SaveSlot,
    SessionEnded,
    SessionList,
    ShareKV,
    SlotList,
    TokenCount,
    Tokenize,
    Tokenized,
)
from stoker.engine.sessions import Sessions
from stoker.engine.transfers import NoTransfers, Transfers
from stoker.engine.view import EngineView
from stoker.errors import InvalidInput, UnsupportedParameter
from stoker.text.tokenizer import Tokenizer, encode_prompt

NO_TOKEN = "\ufffc".encode()


class Answers:
    """Answers the questions to one engine. Questions about texts need the vocabulary only, so any thread may ask them;
    all others belong to the thread that steps.

    Args:
        tokenizer: safe to use from several threads.
        scheduler: the engine's scheduler.
        transfers: the engine's transfers.
        adapters: the engine's LoRA adapters.
        sessions: the engine's sessions.
        look: returns a view of the engine with the records since a serial.
        end_reasoning: ends the reasoning of a reply's choices, and returns how many of them were reasoning.
        share_kv: reports how the KV pool is used, and changes its size.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        scheduler: Scheduler,
        transfers: Transfers | NoTransfers,
        adapters: Adapters,
        sessions: Sessions,
        look: Callable[[int], EngineView],
        end_reasoning: Callable[[str], int],
        share_kv: Callable[[ShareKV], KVShare],
    ) -> None:
        self._share_kv = share_kv
        self._end_reasoning = end_reasoning
        self._sessions = sessions
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._transfers = transfers
        self._adapters = adapters
        self._look = look
        self._blocks: BlockLedger | None = None
        """The ledger of KV blocks; created by the first question about them."""

    def answer(self, question: QuickQuestion) -> AnswerEvent:
        """Answers a question.

        Raises:
            InvalidInput: the question names something that does not exist.
            UnsupportedParameter: only an engine's process can answer it, or the model does not support it.
        """
        match question:
            case Tokenize() | CountTokens() | Detokenize():
                return _answer_about_text(self._tokenizer, question)
            case ListSlots():
                return SlotList(question.question_id, self._scheduler.slots.states())
            case EraseSlots():
                return Erased(question.question_id, self._erase(question.slot))
            case ChangeAdapters():
                self._adapters.change(question)
                return AdapterList(question.question_id, self._adapters.cards())
            case Look():
                return Glimpse(question.question_id, [self._look(question.since.get(0, 0))])
            case ReadPrefix():
                return self._read_prefix(question)
            case LookAtBlocks():
                return self._look_at_blocks(question)
            case ListSessions() | EndSession() | EndReasoning():
                return self._answer_about_requests(question)
            case ShareKV():
                return self._share_kv(question)
            case SaveSlot() | RestoreSlot():
                raise UnsupportedParameter("slots are saved and restored by an engine's process only")

    def _answer_about_requests(self, question: ListSessions | EndSession | EndReasoning) -> AnswerEvent:
        match question:
            case ListSessions(owner=owner):
                return SessionList(question.question_id, self._sessions.states(owner))
            case EndSession(name=name):
                return SessionEnded(question.question_id, self._sessions.end(name))
            case EndReasoning(reply_id=reply_id):
                return ReasoningEnded(question.question_id, self._end_reasoning(reply_id))

    def _read_prefix(self, question: ReadPrefix) -> PrefixText:
        found = prefix_of(self._scheduler.kv, question.node)
        if found is None:
            raise InvalidInput(f"the KV pool has no node {question.node}, or no longer has it", parameter="node")
        begin, entries = found
        read = entries[: question.max_tokens]
        return PrefixText(question.question_id, begin, len(entries), len(read), _text_of(self._tokenizer, read))

    def _look_at_blocks(self, question: LookAtBlocks) -> BlocksHeld:
        if not self._scheduler.kv.can_truncate:
            raise UnsupportedParameter("the model reuses whole conversations only, and no blocks of them")
        if self._blocks is None:
            self._blocks = BlockLedger(self._scheduler.kv, self._transfers.memory_keys)
        return self._blocks.look(question)

    def _erase(self, slot: int | None) -> int:
        if slot is not None:
            return self._scheduler.slots.erase(slot)
        self._transfers.clear()
        idle = [state.slot for state in self._scheduler.slots.states() if state.request_id is None]
        return sum(self._scheduler.slots.erase(slot) for slot in idle)


def _text_of(tokenizer: Tokenizer, entries: Sequence[Entry]) -> str:
    """The text of entries, in the form of `PrefixText.text`."""
    size = tokenizer.vocab_size
    pieces = (tokenizer.token_bytes(e, render_special=True) if 0 <= e < size else NO_TOKEN for e in entries)
    return b"".join(pieces).decode("utf-8", "replace")


def _answer_about_text(tokenizer: Tokenizer, question: Tokenize | CountTokens | Detokenize) -> AnswerEvent:
    match question:
        case Tokenize():
            return answer_tokenize(tokenizer, question)
        case CountTokens():
            return TokenCount(question.question_id, len(entries_of(tokenizer, question.prompt)[0]))
        case Detokenize():
            return answer_detokenize(tokenizer, question)


def answer_tokenize(tokenizer: Tokenizer, question: Tokenize) -> Tokenized:
    """The tokens of a text.

    Raises:
        InvalidInput: the text is not valid Unicode.
    """
    encode = partial(encode_prompt, tokenizer) if question.wants_bos else tokenizer.encode
    try:
        token_ids = encode(question.text, parse_special=question.parse_special)
    except UnicodeEncodeError as error:  # a lone surrogate: JSON can spell one
        raise InvalidInput(f"the text is not valid Unicode: {error.reason}", parameter="content") from error
    pieces = [tokenizer.token_bytes(token_id, render_special=True) for token_id in token_ids]
    return Tokenized(question.question_id, token_ids, pieces)


def answer_detokenize(tokenizer: Tokenizer, question: Detokenize) -> Detokenized:
    """The text of tokens, with special tokens written out; bytes that are not valid UTF-8 become U+FFFD.

    Raises:
        InvalidInput: a token id is outside the vocabulary.
    """
    culprit = next((t for t in question.token_ids if not 0 <= t < tokenizer.vocab_size), None)
    if culprit is not None:
        message = f"`tokens`: token id {culprit} is outside the vocabulary of {tokenizer.vocab_size}"
        raise InvalidInput(message, parameter="tokens")
    pieces = [tokenizer.token_bytes(token_id, render_special=True) for token_id in question.token_ids]
    return Detokenized(question.question_id, b"".join(pieces).decode("utf-8", "replace"))
