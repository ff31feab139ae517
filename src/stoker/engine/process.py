"""The child process of `stoker serve`: one engine that talks to its parent over two sockets, and exits with it.

```
main thread       receives commands; handles aborts, pauses and short texts itself, gives the rest to other threads
tokenizer threads tokenize and check requests, then queue them for the engine
files thread      writes and reads saved slots, reads LoRA adapters
engine thread     steps; sends one frame per step, or puts it into the outbox while the parent is slow
writer thread     sends the outbox to the parent, and a heartbeat about once a second
parent watch      reads stdin: its end means that the parent has exited or crashed
```
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeAlias

import msgspec
import zmq

from stoker.engine import garbage
from stoker.engine.cards import ModelCard
from stoker.engine.config import EngineConfig
from stoker.engine.engine import Engine
from stoker.engine.orders import LoadProgress, Prepare, await_launch, exit_with_parent
from stoker.engine.protocol import (
    EXIT_LOAD_FAILED,
    Abort,
    Command,
    Failed,
    Frame,
    GiveRows,
    Launch,
    LoadFailed,
    Loading,
    Pause,
    Ready,
    Resume,
    Shutdown,
    Submit,
)
from stoker.engine.question_messages import (
    ChangeAdapters,
    CountTokens,
    Detokenize,
    Embed,
    QuickQuestion,
    RestoreSlot,
    SaveSlot,
    Tokenize,
    Unanswered,
)
from stoker.engine.slot_files import file_slot
from stoker.engine.worker import EngineWorker, accepted
from stoker.errors import Cancelled, StokerError

logger = logging.getLogger(__name__)

Build: TypeAlias = Callable[[EngineConfig, LoadProgress], tuple[Engine, ModelCard]]
"""Loads a model and reports progress; raises `StokerError` if the model cannot be loaded."""

_Tokenized: TypeAlias = Submit | Embed | Tokenize | CountTokens | Detokenize
"""Commands with texts, which tokenizer threads handle."""
_Slow: TypeAlias = _Tokenized | SaveSlot | RestoreSlot | ChangeAdapters
"""Commands that the main thread gives to another thread, because they take long."""

EXIT_OK, EXIT_ENGINE_DIED = 0, 1

_MAX_OUTBOX = 1024
"""Maximum number of frames that wait for a slow parent; when it is reached, the engine waits (back-pressure)."""
_NUM_TOKENIZERS = 2
_SHORT_TEXT = 2048
"""Characters or token ids. Shorter texts are tokenized on the main thread."""
_LONG_TEXT = 1 << 18
"""Characters or token ids. Longer texts, which take half a second each, share a thread and delay only each other."""
_POLL_S = 1.0
_IDLE_POLLS = 3
"""Number of polls without a command after which an engine counts as idle."""
_RETRY_S = 0.002
"""Seconds between two attempts to send to a parent that does not read."""
_STOP_S = 1.0
_LOOK, _TERMINATE = b"l", b"t"

_decoder = msgspec.msgpack.Decoder(Command)


def serve_engine(build: Build, prepare: Prepare = lambda path: None) -> int:
    """Reads a `Launch` from stdin, loads the model, serves until told to stop, and returns the exit code.

    Call it from the main thread of a process of its own, and exit right after it.

    Args:
        build: loads a model.
        prepare: called with the path of a model that will probably be loaded, while the `Launch` has not come yet.
    """
    garbage.look_rarely()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    launch = await_launch(prepare)
    os.environ.update(launch.environment)
    threading.Thread(target=exit_with_parent, args=(launch,), name="stoker-parent-watch", daemon=True).start()
    with _connected(launch) as (commands, events):
        try:
            engine, card = build(launch.config, LoadProgress(partial(_tell, events)))
            engine.warm_up()
            garbage.settle()
        except StokerError as error:
            events.send(msgspec.msgpack.encode([LoadFailed.of(error)]))
            return EXIT_LOAD_FAILED
        events.send(msgspec.msgpack.encode([Ready(card)]))
        return _EngineProcess(engine, commands, events, launch).run()


class _EngineProcess:
    """The threads of one engine's process, from the `Ready` event until the process exits."""

    def __init__(self, engine: Engine, commands: zmq.Socket[bytes], events: zmq.Socket[bytes], launch: Launch) -> None:
        self._heartbeat_every_s = launch.heartbeat_every_s
        self._commands = commands
        self._events = events
        self._outbox: queue.Queue[Frame] = queue.Queue(_MAX_OUTBOX)
        self._num_queued = 0
        """Frames in the outbox or being sent by the writer: further frames must queue after them to keep the order."""
        self._sending = threading.Lock()
        """Guards the events socket and `_num_queued`."""
        self._is_ending = threading.Event()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._engine = engine
        self._worker = EngineWorker(engine, self._publish, max_waiting_tokens=launch.config.max_queue_tokens)
        self._tokenizers = ThreadPoolExecutor(_NUM_TOKENIZERS, thread_name_prefix="stoker-tokenizer")
        self._long_tokenizer = ThreadPoolExecutor(1, thread_name_prefix="stoker-long-tokenizer")
        # Thousands of texts to embed must not delay a prompt.
        self._embedding_tokenizer = ThreadPoolExecutor(1, thread_name_prefix="stoker-embedding-tokenizer")
        # Requests wait here for the compilation of their grammars, and delay only each other.
        self._constrained = ThreadPoolExecutor(1, thread_name_prefix="stoker-constrained")
        self._num_idle_polls = 0
        self._is_prepared = False
        """What the first request with a grammar needs has been built, or is being built."""
        self._files = ThreadPoolExecutor(1, thread_name_prefix="stoker-slot-files")
        self._admissions: list[Future[None]] = []
        """Tasks of other threads that may not have ended. The worker's `Door` bounds requests, the parent questions."""
        self._writer = threading.Thread(target=self._write, name="stoker-writer", daemon=True)

    def run(self) -> int:
        """Serves until the engine is told to stop or dies. Returns the exit code."""
        # A handler may interrupt any line of this thread, so it takes no lock.
        signal.signal(signal.SIGTERM, lambda _signal, _frame: self._wake(_TERMINATE))
        self._writer.start()
        self._take_commands()
        has_died = self._worker.death is not None
        self._end()
        for threads in (
            self._tokenizers,
            self._long_tokenizer,
            self._embedding_tokenizer,
            self._constrained,
            self._files,
        ):
            threads.shutdown(wait=False, cancel_futures=True)
        is_closed = self._worker.close(_STOP_S)
        self._writer.join(_STOP_S)
        code = EXIT_ENGINE_DIED if has_died else EXIT_OK
        if not is_closed or wait(self._admissions, _STOP_S).not_done:
            os._exit(code)  # a thread is stuck: a normal exit would wait for it forever
        return code

    def _take_commands(self) -> None:
        poller = zmq.Poller()
        poller.register(self._commands, zmq.POLLIN)
        poller.register(self._wake_receiver.fileno(), zmq.POLLIN)
        while not self._is_ending.is_set() and self._worker.death is None:
            ready = dict(poller.poll(round(_POLL_S * 1000)))
            if self._wake_receiver.fileno() in ready and _TERMINATE in self._wake_receiver.recv(64):
                self._end()
            if self._commands in ready:
                self._obey(_decoder.decode(self._commands.recv()))
            self._note_idle(is_idle=not ready)

    def _note_idle(self, *, is_idle: bool) -> None:
        """Builds what the first request with a grammar needs once the engine has been idle for a few seconds."""
        if not is_idle or (stats := self._worker.heartbeat()).num_running + stats.num_waiting:
            self._num_idle_polls = 0
            return
        self._num_idle_polls += 1
        if self._num_idle_polls >= _IDLE_POLLS and not self._is_prepared:
            self._is_prepared = True
            self._constrained.submit(self._engine.prepare_constraints)

    def _obey(self, command: Command) -> None:
        match command:
            case Submit():
                self._submit(command)
            case Embed():
                self._embed(command)
            case Abort():
                self._worker.abort(command.request_id)
            case Pause() | Resume():
                self._worker.set_pace(command)
            case GiveRows():
                self._worker.give_rows(command)
            case Tokenize() | CountTokens() | Detokenize() | SaveSlot() | RestoreSlot() | ChangeAdapters():
                self._on_another_thread(partial(self._answer, command), command)
            case Shutdown():
                self._end()
            case _:
                self._answer(command)

    def _submit(self, submit: Submit) -> None:
        try:
            self._worker.reserve(submit.request_id)
        except StokerError as error:
            self._publish([Failed.of(submit.request_id, error)])
            return
        if self._is_quick(submit):
            self._accept_here(submit)
        else:
            self._on_another_thread(partial(self._accept, submit), submit)

    def _is_quick(self, submit: Submit) -> bool:
        """The request is so quick to admit that another thread would not pay off, and the parent reads its events."""
        is_plain = submit.outline is None or submit.outline.grammar is None
        return is_plain and not self._num_queued and not submit.text_bias and _size(submit) <= _SHORT_TEXT

    def _embed(self, embed: Embed) -> None:
        try:
            self._worker.reserve(embed.question_id)
        except StokerError as error:
            self._publish([Unanswered.of(embed.question_id, error)])
            return
        self._on_another_thread(partial(self._queue_embedding, embed), embed)

    def _on_another_thread(self, task: Callable[[], None], command: _Slow) -> None:
        future = self._threads_for(command).submit(task)
        self._admissions = [*(f for f in self._admissions if not f.done()), future]
        future.add_done_callback(lambda future: self._note_fault(command, future))

    def _threads_for(self, command: _Slow) -> ThreadPoolExecutor:
        match command:
            case Embed():
                return self._embedding_tokenizer
            case SaveSlot() | RestoreSlot() | ChangeAdapters():
                return self._files
            case Submit(outline=outline) if outline is not None and outline.grammar is not None:
                return self._constrained
            case Submit() | Tokenize() | CountTokens() | Detokenize():
                return self._long_tokenizer if _size(command) > _LONG_TEXT else self._tokenizers

    def _accept_here(self, submit: Submit) -> None:
        try:
            self._accept(submit)
        except Exception as fault:  # noqa: BLE001  # of this request only, as on a thread of its own
            self._tell_fault(submit, fault)

    def _accept(self, submit: Submit) -> None:
        """Admits a request, on the main thread or another one. Sends `Accepted` before the engine can send outputs."""
        try:
            stream = self._worker.admit(submit)
            self._publish([accepted(submit, stream)])
            self._worker.enqueue(stream)
        except Cancelled:
            return  # the client has disconnected meanwhile
        except StokerError as error:
            self._publish([Failed.of(submit.request_id, error)])

    def _queue_embedding(self, embed: Embed) -> None:
        """Admits and queues a request for embeddings. Runs on the thread for embeddings."""
        try:
            self._worker.enqueue(self._worker.admit_embedding(embed))
        except Cancelled:
            return  # the client has disconnected meanwhile
        except StokerError as error:
            self._publish([Unanswered.of(embed.question_id, error)])

    def _answer(self, question: QuickQuestion) -> None:
        """Answers a question on the calling thread, or passes it on to the engine's thread if it needs engine state."""
        try:
            match question:
                case Tokenize() | CountTokens() | Detokenize():
                    self._publish([self._engine.answer(question)])
                case SaveSlot() | RestoreSlot():
                    self._publish([file_slot(question, self._engine.slot_files, self._engine.slot_port, self._worker)])
                case ChangeAdapters():
                    self._engine.adapters.prepare(question)  # checks the file and brings it into the page cache
                    self._worker.ask(question)
                case _:
                    self._worker.ask(question)
        except StokerError as error:
            self._publish([Unanswered.of(question.question_id, error)])

    def _note_fault(self, command: _Slow, future: Future[None]) -> None:
        """Reports an internal error of a task on another thread: it ends one request, whose client must be told."""
        if not future.cancelled() and (fault := future.exception()) is not None:
            self._tell_fault(command, fault)

    def _tell_fault(self, command: _Slow, fault: BaseException) -> None:
        logger.error("a request could not be admitted", exc_info=fault)
        error = StokerError(f"the request could not be admitted: {type(fault).__name__}: {fault}")
        if isinstance(command, Submit):
            self._publish([Failed.of(command.request_id, error)])
        else:
            self._publish([Unanswered.of(command.question_id, error)])

    def _publish(self, events: Frame) -> None:
        """Sends events to the parent. Any thread may call it. It blocks only while the parent reads too slowly."""
        if not events:
            return
        if self._worker_has_died():
            self._wake(_LOOK)  # the parent ends or repeats its requests when this process has exited
            return
        if self._is_ending.is_set() or self._has_sent(events):
            return
        while not self._is_ending.is_set():
            try:
                self._outbox.put(events, timeout=_POLL_S)
            except queue.Full:
                continue
            return
        with self._sending:
            self._num_queued -= 1

    def _has_sent(self, events: Frame) -> bool:
        """Sends a frame at once if possible: waking the writer for every token would take a core from the next step.

        A frame that cannot be sent now is counted as queued.
        """
        with self._sending:
            if not self._num_queued:
                with suppress(zmq.Again):
                    self._events.send(msgspec.msgpack.encode(events), zmq.DONTWAIT)
                    return True
            self._num_queued += 1
        return False

    def _worker_has_died(self) -> bool:
        return not self._is_ending.is_set() and self._worker.death is not None

    def _end(self) -> None:
        self._is_ending.set()
        with suppress(queue.Full):
            self._outbox.put_nowait([])  # wakes the writer thread

    def _wake(self, why: bytes) -> None:
        with suppress(BlockingIOError):  # the socket is full: the main thread has wake-ups to read already
            self._wake_sender.send(why)

    def _write(self) -> None:
        next_beat = time.monotonic()
        while not self._is_ending.is_set():
            wait_s = next_beat - time.monotonic()
            if wait_s <= 0:
                self._send([self._worker.heartbeat()])
                next_beat = time.monotonic() + self._heartbeat_every_s
                continue
            with suppress(queue.Empty):
                self._send(self._outbox.get(timeout=wait_s))
                with self._sending:
                    self._num_queued -= 1

    def _send(self, events: Frame) -> None:
        frame = msgspec.msgpack.encode(events)
        while not self._is_ending.is_set():
            with self._sending, suppress(zmq.Again):
                self._events.send(frame, zmq.DONTWAIT)
                return
            self._is_ending.wait(_RETRY_S)


def _size(command: Submit | Tokenize | CountTokens | Detokenize) -> int:
    """Approximate amount of text to encode or decode, in characters or token ids."""
    match command:
        case Submit() | CountTokens():
            prompt = command.prompt
            if isinstance(prompt, str) or len(prompt) > _LONG_TEXT:
                return len(prompt)
            return sum(len(part) if isinstance(part, str) else 1 for part in prompt)
        case Tokenize():
            return len(command.text)
        case Detokenize():
            return len(command.token_ids)


def _tell(events: zmq.Socket[bytes], loading: Loading) -> None:
    with suppress(zmq.Again):  # drop a progress report that cannot be sent now: it would be stale later
        events.send(msgspec.msgpack.encode([loading]), zmq.DONTWAIT)


@contextmanager
def _connected(launch: Launch) -> Generator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    with (
        zmq.Context[zmq.Socket[bytes]]() as context,
        context.socket(zmq.PULL) as commands,
        context.socket(zmq.PUSH) as events,
    ):
        events.set(zmq.SNDTIMEO, round(_POLL_S * 1000))
        events.set(zmq.LINGER, round(_STOP_S * 1000))
        commands.connect(launch.commands)
        events.connect(launch.events)
        yield commands, events
