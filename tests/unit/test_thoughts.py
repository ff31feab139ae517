"""The memory of thoughts: by owner and call, bounded, and only for messages that have none of their own."""

from stoker.chat.answers import ToolCalls
from stoker.chat.thoughts import ThoughtMemory, Thoughts
from stoker.text.chat_formats.events import CallBegin, CallEnd, Content, Reasoning
from stoker.text.messages import Message

MEMORY_BYTES = 10_000


def calling(*call_ids: str, reasoning: str | None = None) -> Message:
    return Message(role="assistant", reasoning=reasoning, tool_calls=tuple({"id": call_id} for call_id in call_ids))


def test_what_is_left_out_is_filled_in() -> None:
    thoughts = Thoughts(ThoughtMemory(MEMORY_BYTES), "owner")
    calls = ToolCalls("call_", "seed", thoughts.keep)
    calls.push_all([Reasoning("I "), Reasoning("think."), Content("So"), CallBegin("f"), CallEnd(), CallBegin("g")])
    first, second = (call.call_id for call in calls.calls)
    other = Message(role="user", content="hello")
    (told, filled, kept) = thoughts.filled_in([other, calling(second, first), calling(first, reasoning="Mine.")])
    assert (told, filled.reasoning, kept.reasoning) == (other, "I think.", "Mine.")
    assert thoughts.filled_in([calling(second)])[0].reasoning is None


def test_thoughts_of_one_client_are_not_given_to_another() -> None:
    memory = ThoughtMemory(MEMORY_BYTES)
    Thoughts(memory, "one").keep("call_1", "Secret.")
    assert Thoughts(memory, "other").filled_in([calling("call_1")])[0].reasoning is None


def test_the_oldest_leave_and_what_is_too_large_does_not_come() -> None:
    thoughts = Thoughts(ThoughtMemory(MEMORY_BYTES))
    for number in range(10):
        thoughts.keep(f"call_{number}", "x" * 500)
    known = [number for number in range(10) if thoughts.filled_in([calling(f"call_{number}")])[0].reasoning]
    assert known == [7, 8, 9] or known == [6, 7, 8, 9]
    thoughts.keep("call_10", "x" * MEMORY_BYTES)
    assert thoughts.filled_in([calling("call_10")])[0].reasoning is None
    assert thoughts.filled_in([calling("call_9")])[0].reasoning
    for _ in range(20):
        thoughts.keep("call_9", "again")
    assert thoughts.filled_in([calling("call_9")])[0].reasoning == "again"
    assert thoughts.filled_in([calling("call_8")])[0].reasoning
