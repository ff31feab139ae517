"""The engine's thread: it sleeps, wakes, gives away, and when it dies everybody hears of it."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest

from stoker.backends.scripted import NextToken, ScriptedBackend, ScriptedTokenizer, reply_with, scripted_info
from stoker.core.batch import Batch
from stoker.core.params import SamplingParams
from stoker.core.scheduler import SchedulerConfig
from stoker.engine.door import Door
from stoker.engine.engine import Engine
from stoker.engine.protocol import Event, Failed, Output, Submit
from stoker.engine.stream import Stream
from stoker.engine.worker import EngineWorker
from stoker.errors import Cancelled, EngineCrashed, InvalidInput, ModelNotLoaded, Overloaded
from tests.harness import loaded
from tests.waiting import BOUND_S

ENDLESS = SamplingParams(temperature=0, ignore_eos=True)


class Sink:
    """Takes what is published; tests wait on it."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, events: list[Event]) -> None:
        with self._changed:
            self.events += events
            self._changed.notify_all()

    def wait_for(self, predicate: Callable[[list[Event]], bool]) -> list[Event]:
        with self._changed:
            assert self._changed.wait_for(lambda: predicate(self.events), BOUND_S), self.events
            return list(self.events)

    def wait_for_end(self, request_id: str) -> list[Event]:
        return self.wait_for(lambda events: any(is_end(e, request_id) for e in events))


class Gate:
    """A backend that waits in `forward` until it is let go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, batch: Batch) -> None:
        self.entered.set()
        assert self.opened.wait(BOUND_S)


def is_end(event: Event, request_id: str) -> bool:
    is_last = isinstance(event, Failed) or (isinstance(event, Output) and event.finish_reason is not None)
    return is_last and event.request_id == request_id  # type: ignore[union-attr]


@contextmanager
def running(
    publish: Callable[[list[Event]], None],
    next_token: NextToken | None = None,
    *,
    before_forward: Callable[[Batch], None] | None = None,
    max_running: int = 2,
    max_waiting: int = 2,
    tokenizer: ScriptedTokenizer | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Generator[EngineWorker]:
    backend = ScriptedBackend(
        scripted_info(context_size=100_000, kv_tokens=100_000), next_token=next_token, before_forward=before_forward
    )
    config = SchedulerConfig(max_running=max_running, max_waiting=max_waiting)
    engine = Engine(loaded(backend, tokenizer), config)
    worker = EngineWorker(engine, publish, clock=clock)
    try:
        yield worker
    finally:
        assert worker.close(BOUND_S)
        assert backend.is_closed


def submit(request_id: str, sampling: SamplingParams | None = None) -> Submit:
    return Submit(request_id, "Q:", sampling or SamplingParams(temperature=0))


def test_request_is_answered_and_idle_worker_wakes_again():
    sink = Sink()
    with running(sink, reply_with("hello")) as worker:
        for request_id in ("a", "b"):
            assert worker.submit(submit(request_id)).prompt_tokens == 3
            sink.wait_for_end(request_id)
    texts = {i: "".join(e.text for e in sink.events if isinstance(e, Output) and e.request_id == i) for i in "ab"}
    assert texts == {"a": "hello", "b": "hello"}


def test_full_house_is_overloaded_until_somebody_leaves():
    sink, gate = Sink(), Gate()
    with running(sink, before_forward=gate) as worker:
        for request_id in "abcd":
            worker.submit(submit(request_id, ENDLESS))
        with pytest.raises(Overloaded) as caught:
            worker.submit(submit("e"))
        retry_after_s = caught.value.fields["retry_after_s"]
        assert isinstance(retry_after_s, float)
        assert 1 <= retry_after_s <= 60
        worker.abort("a")
        worker.submit(submit("e", ENDLESS))
        gate.opened.set()


def test_refused_request_gives_its_place_back():
    with running(Sink(), max_running=1, max_waiting=0) as worker:
        for _ in range(3):
            with pytest.raises(InvalidInput):
                worker.submit(Submit("a", [], SamplingParams()))
        worker.submit(submit("a", ENDLESS))


def test_id_in_use_is_refused():
    with running(Sink()) as worker:
        worker.submit(submit("a", ENDLESS))
        with pytest.raises(InvalidInput):
            worker.submit(submit("a"))


def test_abort_while_a_step_runs_frees_the_slot_with_that_step():
    sink, gate = Sink(), Gate()
    with running(sink, reply_with("x"), before_forward=gate, max_running=1) as worker:
        worker.submit(submit("a", ENDLESS))
        assert gate.entered.wait(BOUND_S)
        worker.submit(submit("b"))
        worker.abort("a")
        gate.opened.set()
        events = sink.wait_for_end("b")
    assert all(not isinstance(e, (Output, Failed)) or e.request_id == "b" for e in events)


def test_abort_between_tokenizing_and_queueing_is_heard():
    with running(Sink()) as worker:
        worker.reserve("a")
        stream = worker.admit(submit("a"))
        worker.abort("a")
        with pytest.raises(Cancelled):
            worker.enqueue(stream)


def test_id_aborted_while_it_is_tokenized_is_free_again_only_after_that():
    sink = Sink()
    with running(sink, reply_with("x"), max_running=1, max_waiting=0) as worker:
        worker.reserve("a")
        worker.abort("a")
        with pytest.raises(InvalidInput, match="in use"):
            worker.reserve("a")
        with pytest.raises(Overloaded):
            worker.reserve("b")
        with pytest.raises(Cancelled):
            worker.enqueue(worker.admit(submit("a")))
        worker.submit(submit("a"))
        sink.wait_for_end("a")


def test_id_aborted_after_it_was_tokenized_is_free_again_at_once():
    sink = Sink()
    with running(sink, reply_with("x")) as worker:
        worker.reserve("a")
        left = worker.admit(submit("a", ENDLESS))
        worker.abort("a")
        worker.reserve("a")
        with pytest.raises(Cancelled):
            worker.enqueue(left)
        worker.enqueue(worker.admit(submit("a")))
        sink.wait_for_end("a")


def test_id_aborted_twice_before_it_was_queued_is_free_again():
    sink = Sink()
    with running(sink, reply_with("x")) as worker:
        worker.reserve("a")
        worker.abort("a")  # while it is tokenized
        stream = worker.admit(submit("a"))
        worker.abort("a")
        with pytest.raises(Cancelled):
            worker.enqueue(stream)
        worker.submit(submit("a"))
        sink.wait_for_end("a")


def test_next_request_of_an_id_hears_nothing_of_the_aborted_one():
    sink, gate = Sink(), Gate()
    with running(sink, reply_with("x"), before_forward=gate) as worker:
        worker.submit(Submit("a", "first", SamplingParams(temperature=0, max_tokens=1)))
        assert gate.entered.wait(BOUND_S)
        worker.abort("a")
        accepted = worker.submit(Submit("a", "the second", SamplingParams(temperature=0)))
        gate.opened.set()
        outputs = [event for event in sink.wait_for_end("a") if isinstance(event, Output)]
        worker.submit(submit("b"))
        sink.wait_for_end("b")
    assert {event.usage.prompt_tokens for event in outputs} == {accepted.prompt_tokens}


def test_fault_in_a_step_fails_everybody_and_the_worker_refuses_from_then_on(caplog: pytest.LogCaptureFixture):
    def explode(batch: Batch) -> None:
        raise RuntimeError("a bug")

    sink, gate = Sink(), Gate()

    def wait_and_explode(batch: Batch) -> None:
        gate(batch)
        explode(batch)

    with running(sink, before_forward=wait_and_explode) as worker:
        for request_id in "abc":
            worker.submit(submit(request_id))
        gate.opened.set()
        events = sink.wait_for(lambda events: len(events) == 3)
        assert {(e.request_id, e.code) for e in events if isinstance(e, Failed)} == {
            (i, "engine_crashed") for i in "abc"
        }
        assert worker.death is not None
        assert "a bug" in worker.death.message
        with pytest.raises(ModelNotLoaded):
            worker.submit(submit("d"))
    assert "the engine died" in caplog.text


def test_fault_while_publishing_fails_everybody(caplog: pytest.LogCaptureFixture):
    sink = Sink()

    def publish(events: list[Event]) -> None:
        if any(isinstance(event, Output) for event in events):
            raise ValueError("cannot take it")
        sink(events)

    with running(publish) as worker:
        worker.submit(submit("a", ENDLESS))
        (event,) = sink.wait_for_end("a")
        assert isinstance(event, Failed)
        assert event.code == "engine_crashed"


def test_publish_that_always_fails_kills_the_worker_quietly(caplog: pytest.LogCaptureFixture):
    def publish(events: list[Event]) -> None:
        raise ValueError("cannot take it")

    with running(publish) as worker:
        worker.submit(submit("a", ENDLESS))
    assert worker.death is not None
    assert "the end of the engine cannot be reported" in caplog.text


def test_close_ends_live_requests():
    sink = Sink()
    with running(sink, max_running=1) as worker:
        worker.submit(submit("a", ENDLESS))
        worker.submit(submit("b", ENDLESS))
    assert {e.request_id: e.code for e in sink.events if isinstance(e, Failed)} == {
        "a": "model_not_loaded",
        "b": "model_not_loaded",
    }
    with pytest.raises(ModelNotLoaded):
        worker.submit(submit("c"))


def test_close_ends_turns_that_nobody_has_taken():
    gate = Gate()
    with running(Sink(), before_forward=gate) as worker:
        worker.submit(submit("a", ENDLESS))
        assert gate.entered.wait(BOUND_S)
        turn = worker.perform(lambda: 1)
        assert not worker.close(timeout_s=0.01)
        gate.opened.set()
        with pytest.raises(ModelNotLoaded):
            turn.result(BOUND_S)


def test_turn_that_kills_the_engine_ends_all_of_them():
    gate = Gate()
    with running(Sink(), before_forward=gate) as worker:
        worker.submit(submit("a", ENDLESS))
        assert gate.entered.wait(BOUND_S)
        turns = [worker.perform(lambda: 1), worker.perform(lambda: 1 // 0), worker.perform(lambda: 2)]
        gate.opened.set()
        assert turns[0].result(BOUND_S) == 1
        for turn in turns[1:]:
            with pytest.raises(EngineCrashed):
                turn.result(BOUND_S)


def test_nothing_of_a_turn_is_kept():
    is_gone = threading.Event()
    with running(Sink()) as worker:
        turn = worker.perform(Gate)
        weakref.finalize(turn.result(BOUND_S), is_gone.set)
        del turn
        assert is_gone.wait(BOUND_S)


def test_close_of_a_stuck_engine_is_bounded(caplog: pytest.LogCaptureFixture):
    gate = Gate()
    with running(Sink(), before_forward=gate) as worker:
        worker.submit(submit("a"))
        assert gate.entered.wait(BOUND_S)
        assert not worker.close(timeout_s=0.01)
        gate.opened.set()


def test_heartbeat_says_since_when_a_step_is_due():
    now = [100.0]
    gate, sink = Gate(), Sink()
    with running(sink, reply_with("x"), before_forward=gate, clock=lambda: now[0]) as worker:
        now[0] = 200.0
        assert worker.heartbeat().stalled_s == 0, "idle is not stalled"
        worker.submit(submit("a"))
        assert gate.entered.wait(BOUND_S)
        worker.submit(submit("b"))
        now[0] = 230.0
        beat = worker.heartbeat()
        assert beat.stalled_s == 30
        assert beat.num_waiting == 1
        gate.opened.set()
        sink.wait_for_end("a")
        sink.wait_for_end("b")
        worker.close(BOUND_S)
        beat = worker.heartbeat()
        assert (beat.stalled_s, beat.num_running, beat.num_waiting) == (0, 0, 0)
        assert beat.num_steps > 0


def test_time_in_publish_is_no_stall():
    now = [0.0]
    published = threading.Event()
    opened = threading.Event()

    def publish(events: list[Event]) -> None:
        published.set()
        assert opened.wait(BOUND_S)

    with running(publish, clock=lambda: now[0]) as worker:
        worker.submit(submit("a", ENDLESS))
        assert published.wait(BOUND_S)
        now[0] = 1000.0
        assert worker.heartbeat().stalled_s == 0
        opened.set()


def test_aborts_from_many_threads_leave_nothing_behind():
    sink = Sink()
    with running(sink, max_running=2, max_waiting=100) as worker:

        def come_and_go(index: int) -> None:
            for turn in range(10):
                request_id = f"{index}-{turn}"
                worker.submit(submit(request_id, ENDLESS))
                worker.abort(request_id)

        threads = [threading.Thread(target=come_and_go, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND_S)
        worker.submit(submit("last", SamplingParams(temperature=0, max_tokens=1)))
        sink.wait_for_end("last")
    assert worker.heartbeat().kv_used == 0


def test_slow_tokenizing_of_one_does_not_hold_up_another():
    entered, opened = threading.Event(), threading.Event()

    class Tokenizer(ScriptedTokenizer):
        def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
            if text == "slow":
                entered.set()
                assert opened.wait(BOUND_S)
            return super().encode(text, parse_special=parse_special)

    sink = Sink()
    streams: list[Stream] = []
    with running(sink, reply_with("x"), tokenizer=Tokenizer()) as worker:
        worker.reserve("slow")
        slow = Submit("slow", "slow", SamplingParams())
        thread = threading.Thread(target=lambda: streams.append(worker.admit(slow)))
        thread.start()
        assert entered.wait(BOUND_S)
        worker.submit(submit("quick"))
        sink.wait_for_end("quick")
        opened.set()
        thread.join(BOUND_S)
        assert len(streams) == 1


def test_door_tells_when_to_come_again_from_how_fast_others_left():
    door = Door(capacity=3, parallel=4, clock=lambda: 45)
    assert door.retry_after_s() == 1
    for second in range(0, 50, 5):
        door.note_departure(second)
    assert door.retry_after_s() == 20
    door.check(2)
    with pytest.raises(Overloaded, match="try again in 20 s"):
        door.check(3)


def test_door_tells_it_from_how_long_nobody_left_too():
    now = [100.0]
    door = Door(capacity=2, parallel=1, clock=lambda: now[0])
    door.check(0)
    now[0] = 112.5
    door.check(1)
    assert door.retry_after_s() == 12.5, "before anybody has left"
    with pytest.raises(Overloaded, match="try again in 13 s"):  # as the header says
        door.check(2)
    door.note_departure(112.5)
    assert door.retry_after_s() == 1
    now[0] = 1000.0
    door.check(0)
    assert door.retry_after_s() == 1, "while nobody was inside, nobody could leave"
    now[0] = 1007.0
    assert door.retry_after_s() == 7
