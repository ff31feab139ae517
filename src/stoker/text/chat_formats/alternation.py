"""Rewrites conversations to one system prompt with alternating user and assistant turns, which some templates require.

```
system, system, user, user, system, assistant            system, user, assistant
assistant: calls a and b, result a, result b             assistant: a, result a, assistant: b, result b
```
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from stoker.text.messages import Json, Message, Part, TextPart

SYSTEM_ROLES = frozenset({"system", "developer"})


def has_more_systems(messages: Sequence[Message]) -> bool:
    """Whether there is a system prompt that is not the first message."""
    return any(message.role in SYSTEM_ROLES for message in messages[1:])


def by_system(messages: Iterable[Message]) -> list[Message]:
    """The messages, with role `developer` replaced by `system`."""
    return [replace(message, role="system") if message.role == "developer" else message for message in messages]


def with_one_system(messages: Sequence[Message]) -> list[Message]:
    """Merges the system prompts at the beginning, makes later ones user messages, and merges neighbors of one role."""
    num_first = len(list(takewhile(lambda message: message.role in SYSTEM_ROLES, messages)))
    first = [replace(message, role=messages[0].role) for message in messages[:num_first]]
    return _merged([*first, *map(_said_by_user, messages[num_first:])])


def alternating(messages: Sequence[Message]) -> list[Message]:
    """As `with_one_system`; in addition, parallel tool calls are split so that each call is followed by its result."""
    return _merged(_one_by_one(with_one_system(messages)))


def without_gaps(messages: Iterable[Message]) -> list[Message]:
    """Adds missing turns, as a space: a question before a first answer or after nothing but system prompts, and an
    answer between a tool's result and a question.
    """
    found: list[Message] = []
    for message in messages:
        before = found[-1].role if found else "system"
        if before in SYSTEM_ROLES and message.role == "assistant":
            found.append(Message(role="user", content=" "))
        elif before == "tool" and message.role == "user":
            found.append(Message(role="assistant", content=" "))
        found.append(message)
    is_asked = any(message.role not in SYSTEM_ROLES for message in found)
    return found if is_asked else [*found, Message(role="user", content=" ")]


def _said_by_user(message: Message) -> Message:
    return replace(message, role="user") if message.role in SYSTEM_ROLES else message


def _merged(messages: Iterable[Message]) -> list[Message]:
    found: list[Message] = []
    for message in messages:
        if found and _are_one(found[-1], message):
            found[-1] = _joined(found[-1], message)
        else:
            found.append(message)
    return found


def _are_one(first: Message, second: Message) -> bool:
    return first.role == second.role != "tool" and not first.tool_calls


def _joined(first: Message, second: Message) -> Message:
    """One message from two, with the tool calls of the second. Images and recordings keep their positions."""
    reasoning = "\n\n".join(filter(None, (first.reasoning, second.reasoning))) or None
    parts = [*_parts(first), *_parts(second)]
    if any(not isinstance(part, TextPart) for part in parts):
        return replace(second, content=tuple(parts), reasoning=reasoning)
    return replace(second, content="\n\n".join(filter(None, (first.text, second.text))), reasoning=reasoning)


def _parts(message: Message) -> tuple[Part, ...]:
    return message.content if isinstance(message.content, tuple) else (TextPart(message.text),)


def _one_by_one(messages: Sequence[Message]) -> Iterator[Message]:
    """Splits messages with several calls into one message per call, if the results of all calls follow."""
    index = 0
    while index < len(messages):
        message = messages[index]
        results = {m.tool_call_id: m for m in takewhile(lambda m: m.role == "tool", messages[index + 1 :])}
        pairs = [(call, result) for call in message.tool_calls if (result := results.get(_id(call))) is not None]
        index += 1
        if len(pairs) < 2 or not len(pairs) == len(message.tool_calls) == len(results):
            yield message
            continue
        index += len(pairs)
        for call, result in pairs:
            yield replace(message, tool_calls=(call,))
            yield result
            message = replace(message, content="")


def _id(call: Mapping[str, Json]) -> str:
    call_id = call.get("id")
    return call_id if isinstance(call_id, str) else ""
