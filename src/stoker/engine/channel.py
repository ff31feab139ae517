"""The parent's ends of the two sockets to one child process: commands go out, frames of events come in.

```
parent  PUSH commands ---> PULL  child        one command per message
        PULL events   <--- PUSH               one list of events per step
```

Each child gets a channel of its own, so that no message of a dead child can reach its successor.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import zmq

from stoker.engine.protocol import Command, Frame
from stoker.errors import InvalidInput, ModelNotLoaded

_MAX_IPC_PATH = 100
"""Maximum length of a socket's path, in bytes; operating systems allow 103 to 107 for local sockets."""
_MAX_UNSENT = 4096
"""Maximum number of commands that wait for a child that does not read them."""
_COMMANDS, _EVENTS = "commands", "events"

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)


class Channel:
    """Two bound sockets, and the private folder that contains them. Belongs to one event loop.

    If local (ipc) sockets exist, only this user can read their folder; otherwise the loopback interface is used.

    Raises:
        OSError: the folder or a socket cannot be created.
    """

    def __init__(self, context: zmq.Context[Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self._held: Frame | None = None
        """A frame that was read from the socket and not yet returned by `receive`."""
        self._waiter: asyncio.Future[None] | None = None
        with ExitStack() as undo:
            self._folder = _private_folder(undo) if zmq.has("ipc") else None
            try:
                self._commands = _open(context, zmq.PUSH, undo)
                self._events = _open(context, zmq.PULL, undo)
                self._descriptor = int(self._events.get(zmq.FD))
                self._commands.set(zmq.SNDHWM, _MAX_UNSENT)
                self.commands = self._bind(self._commands, _COMMANDS)
                self.events = self._bind(self._events, _EVENTS)
            except zmq.ZMQError as error:  # `ZMQError` is no subclass of `OSError`
                raise OSError(error.errno, str(error)) from error
            undo.pop_all()

    def send(self, command: Command) -> None:
        """Gives a command to the child; never waits.

        Raises:
            InvalidInput: a string in the command is not valid Unicode.
            ModelNotLoaded: the child has not read commands for very long.
        """
        try:
            frame = _encoder.encode(command)
        except UnicodeEncodeError as error:  # a lone surrogate: JSON can spell one
            raise InvalidInput(f"the request is not valid Unicode: {error.reason}", parameter="prompt") from error
        try:
            self._commands.send(frame, zmq.DONTWAIT)
        except zmq.Again as error:
            raise ModelNotLoaded("the engine process does not take commands", retry_after_s=1.0) from error

    async def connected(self) -> None:
        """Returns when the child has connected to the socket of commands. Before that, `send` fails.

        The child connects to both sockets at once, but either connection can be made first.
        """
        descriptor = int(self._commands.get(zmq.FD))
        has_changed = asyncio.Event()
        self._loop.add_reader(descriptor, has_changed.set)
        try:
            while not int(self._commands.get(zmq.EVENTS)) & zmq.POLLOUT:
                has_changed.clear()
                await has_changed.wait()
        finally:
            self._loop.remove_reader(descriptor)

    async def receive(self) -> Frame:
        """Returns the next frame. Always yields to other tasks first. Only one task at a time may call it."""
        if self._take():
            await asyncio.sleep(0)
        while self._held is None:
            await self._arrival()
            self._take()
        frame, self._held = self._held, None
        assert frame is not None
        return frame

    async def receive_rest(self, wait_s: float) -> Frame:
        """The events that a child sent before it ended. Returns when no frame arrives for `wait_s` seconds."""
        rest: Frame = []
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(wait_s):
                    rest += await self.receive()
        return rest

    def close(self) -> None:
        """Closes the sockets and removes the folder; unsent commands are lost. Calling it twice is allowed."""
        self._commands.close()
        if not self._events.closed:
            self._loop.remove_reader(self._descriptor)
        self._events.close()
        if self._folder is not None:
            _remove(self._folder)

    def _take(self) -> bool:
        if self._held is None:
            with suppress(zmq.Again):
                self._held = _decoder.decode(self._events.recv(zmq.DONTWAIT))
        return self._held is not None

    async def _arrival(self) -> None:
        """Waits until a frame may have arrived. The descriptor signals only a change, once, not frames from before."""
        waiter = self._waiter = self._loop.create_future()
        self._loop.add_reader(self._descriptor, self._wake)
        await waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        else:  # no task waits: the descriptor would call this method again and again
            self._loop.remove_reader(self._descriptor)

    def _bind(self, socket: zmq.Socket[bytes], name: str) -> str:
        endpoint = "tcp://127.0.0.1:*" if self._folder is None else f"ipc://{self._folder / name}"
        socket.bind(endpoint)
        return socket.get_string(zmq.LAST_ENDPOINT)


def _open(context: zmq.Context[Any], kind: int, undo: ExitStack) -> zmq.Socket[bytes]:
    # No `zmq.asyncio` sockets: they would cost a third of the time that a token takes in this process.
    socket: zmq.Socket[bytes] = zmq.Socket(context, kind)
    undo.callback(socket.close)
    socket.set(zmq.LINGER, 0)
    return socket


def _private_folder(undo: ExitStack) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="stoker-"))
    if len(bytes(folder)) + len(f"/{_COMMANDS}") > _MAX_IPC_PATH:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="stoker-", dir="/tmp"))
    undo.callback(_remove, folder)
    return folder


def _remove(folder: Path) -> None:
    """Removes the folder without listing it: listing needs a file descriptor, and there may be none left."""
    with suppress(OSError):
        for name in (_COMMANDS, _EVENTS):
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()
