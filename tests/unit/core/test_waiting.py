from __future__ import annotations

from stoker.core import waiting
from stoker.core.sequence import Sequence
from stoker.core.waiting import WaitingQueue
from tests.harness import Loop, make_request


def sequence(client_key: str, priority: int = 0) -> Sequence:
    return Sequence(make_request(f"of {client_key}", [1], client_key=client_key, priority=priority))


def first_in_line(queue: WaitingQueue) -> str:
    return queue.candidates(1)[0].request.client_key


def test_a_client_that_sends_one_after_the_other_pays_for_its_long_requests() -> None:
    """Its account survives the moments in which it has nothing here."""
    loop = Loop(max_running=1)
    for index in range(40):
        loop.add(make_request(f"short{index}", [index, 1, 2], 1, client_key="short"))
    num_long = 0
    while len(loop.reasons) - num_long < 40:
        if f"long{num_long - 1}" in loop.reasons or num_long == 0:
            loop.add(make_request(f"long{num_long}", [num_long] * 60, 1, client_key="long"))
            num_long += 1
        loop.step()
    assert num_long <= 4


def test_a_newcomer_does_not_overtake_by_what_a_lower_priority_was_not_given() -> None:
    queue = WaitingQueue()
    queue.push(sequence("starved", priority=-1))
    queue.push(sequence("old"))
    queue.charge("old", 1000)
    queue.push(sequence("new"))
    queue.charge("new", 1)
    assert first_in_line(queue) == "old"


def test_a_newcomer_does_not_overtake_by_what_a_slow_stream_was_not_given() -> None:
    queue = WaitingQueue()
    slow, old = sequence("slow"), sequence("old")
    queue.push(slow)
    queue.take(slow)
    queue.push(old)
    queue.charge("old", 1000)
    queue.take(old)
    queue.push(sequence("new"))
    queue.push(sequence("old"))
    queue.charge("new", 1)
    assert first_in_line(queue) == "old"


def test_accounts_do_not_pile_up() -> None:
    queue = WaitingQueue()
    queue.push(sequence("waits"))
    for index in range(3 * waiting.MAX_ACCOUNTS):
        queue.charge(f"client {index}", index)
        queue.forget_idle({"runs"})
    assert len(queue._served) <= waiting.MAX_ACCOUNTS
    assert f"client {3 * waiting.MAX_ACCOUNTS - 1}" in queue._served, "those given most are the last to be forgotten"
    queue.remove(queue.candidates(1)[0])
    queue.forget_idle(set())
    assert not queue._served


def test_clients_take_turns_within_the_highest_priority() -> None:
    queue = WaitingQueue()
    for client_key, priority in [("a", 0), ("a", 0), ("b", 0), ("low", -1)]:
        queue.push(sequence(client_key, priority))
    assert [s.request.client_key for s in queue.candidates(8)] == ["a", "b", "a"]
    assert WaitingQueue().candidates(8) == []
