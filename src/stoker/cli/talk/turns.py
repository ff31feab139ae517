"""The messages of a conversation, and which of them fit into the context. It calls no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

if TYPE_CHECKING:
    from stoker.text.messages import Message

Said: TypeAlias = dict[str, Any]
"""One message in OpenAI's format."""

FileKind: TypeAlias = Literal["image", "audio", "file"]
"""What a file is: an image, a recording, or a document (`file`)."""

_KINDS = get_args(FileKind)
_FULL = 0.85
"""Fraction of the context that the conversation and a question may take, so that an answer has room."""
_USUAL_RATE = 0.25
"""Tokens per character of English, assumed for an empty conversation."""


class TalkFile(NamedTuple):
    """A file that a question is about."""

    kind: FileKind
    path: str


class Turns:
    """The messages of a conversation, oldest first: a system prompt, then turns of one question and its answer each.

    Args:
        system: the system prompt; empty = none.
    """

    def __init__(self, system: str = "") -> None:
        self.system = system
        self.files: list[TalkFile] = []
        """The images, recordings and documents that the next question is about."""
        self._turns: list[list[Said]] = []
        self._num_tokens = 0
        """Tokens of the conversation as the last answer counted them, less an estimate for turns removed since."""

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def num_tokens(self) -> int:
        """Tokens of the conversation, as the last answer counted them; 0 before the first answer."""
        return self._num_tokens

    @property
    def messages(self) -> list[Said]:
        """The messages that the model gets: the system prompt, if any, and all turns."""
        opening = [{"role": "system", "content": self.system}] if self.system else []
        return [*opening, *(message for turn in self._turns for message in turn)]

    def with_question(self, question: str) -> list[Said]:
        """The messages that the model gets to answer this question."""
        return [*self.messages, asked_about(question, self.files)]

    def add(self, question: str, answers: Sequence[Said], num_tokens: int) -> None:
        """Adds a turn that has ended. Its question takes the attached files.

        Args:
            question: of the user.
            answers: the messages that followed the question, the model's answer last.
            num_tokens: number of tokens of the whole conversation, this turn included.
        """
        self._turns.append([asked_about(question, self.files), *answers])
        self._num_tokens, self.files = num_tokens, []

    def copy(self) -> Turns:
        """A copy with the same messages and files. Additions to the copy do not change this conversation."""
        copied = Turns.restored(self.saved())
        copied.files = list(self.files)
        return copied

    def undo(self) -> str | None:
        """Removes the last turn and returns its question; None if there is no turn. Its files are attached again."""
        if not self._turns:
            return None
        content = self._take(-1)[0]["content"]
        if isinstance(content, str):
            return content
        self.files = [TalkFile(part["type"], part[part["type"]]) for part in content if part["type"] in _KINDS]
        return "".join(part["text"] for part in content if part["type"] == "text")

    def clear(self) -> None:
        """Removes all turns and attached files; the system prompt stays."""
        self._turns, self._num_tokens, self.files = [], 0, []

    def drop_oldest(self) -> bool:
        """Removes the oldest turn; false if there is no turn."""
        if self._turns:
            self._take(0)
            return True
        return False

    def make_room(self, question: str, context_size: int) -> int:
        """Removes the oldest turns until the question and an answer probably fit into `context_size` tokens.

        Returns:
            The number of removed turns.
        """
        num_dropped = 0
        while self._turns and self._num_tokens + len(question) * self._tokens_per_character() > _FULL * context_size:
            self.drop_oldest()
            num_dropped += 1
        return num_dropped

    def saved(self) -> dict[str, Any]:
        """The conversation as values that can be written to a JSON file, without attached files."""
        return {"system": self.system, "turns": self._turns, "num_tokens": self._num_tokens}

    @classmethod
    def restored(cls, saved: dict[str, Any]) -> Turns:
        """The conversation whose `saved` returned these values.

        Raises:
            KeyError, TypeError, ValueError: the values are not those of a conversation.
        """
        turns = cls(str(saved["system"]))
        turns._turns = [[_checked(message) for message in turn] for turn in saved["turns"]]
        turns._num_tokens = int(saved["num_tokens"])
        return turns

    def _take(self, index: int) -> list[Said]:
        taken_tokens = round(_length(self._turns[index]) * self._tokens_per_character())
        self._num_tokens = max(0, self._num_tokens - taken_tokens)
        return self._turns.pop(index)

    def _tokens_per_character(self) -> float:
        """The average of this conversation, by the tokens of the last answer's count, chat template included."""
        num_characters = len(self.system) + sum(map(_length, self._turns))
        return self._num_tokens / num_characters if num_characters else _USUAL_RATE


def counted(num_turns: int) -> str:
    """
    >>> counted(0), counted(1)
    ('0 turns', '1 turn')
    """
    return f"{num_turns} turn{'' if num_turns == 1 else 's'}"


def asked_about(question: str, files: Sequence[TalkFile]) -> Said:
    """The message of a user's question, with the files that it is about."""
    if not files:
        return {"role": "user", "content": question}
    parts = [{"type": file.kind, file.kind: file.path} for file in files]
    return {"role": "user", "content": [*parts, {"type": "text", "text": question}]}


def said_of(message: Message) -> Said:
    """A message of the model or of a tool, as a dict that can be written to a JSON file."""
    fields = {
        "content": message.content,
        "name": message.name,
        "reasoning_content": message.reasoning,
        "tool_calls": list(message.tool_calls),
        "tool_call_id": message.tool_call_id,
    }
    return {"role": message.role, **{name: value for name, value in fields.items() if value not in (None, [])}}


def _length(turn: list[Said]) -> int:
    return sum(len(str(message.get("content") or "")) for message in turn)


def _checked(message: Any) -> Said:
    if not (isinstance(message, dict) and isinstance(message.get("role"), str)):  # pyright: ignore[reportUnknownMemberType]
        raise TypeError("no message")
    return message  # pyright: ignore[reportUnknownVariableType]
