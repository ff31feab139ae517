"""A SOCKS5 proxy on this machine (RFC 1928): without passwords, by names of hosts, and always to the same place."""

import socket
import struct
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Self

from tests.unit.models.running_server import running

_NO_PASSWORD = b"\x05\x00"
_CONNECTED = b"\x05\x00\x00\x01" + bytes(6)
_BY_NAME = 3


@dataclass
class SocksProxy:
    """Connects everybody with `target`, wherever they want to go."""

    target: tuple[str, int]
    asked: list[tuple[str, int]] = field(default_factory=list)
    """Where they wanted to go."""

    def __enter__(self) -> Self:
        proxy = self

        class Handler(StreamRequestHandler):
            def handle(self) -> None:
                _, num_methods = self.rfile.read(2)
                self.rfile.read(num_methods)
                self.wfile.write(_NO_PASSWORD)
                *_, kind, length = self.rfile.read(5)
                assert kind == _BY_NAME
                name = self.rfile.read(length).decode()
                (port,) = struct.unpack("!H", self.rfile.read(2))
                proxy.asked.append((name, port))
                with socket.create_connection(proxy.target) as there:
                    self.wfile.write(_CONNECTED)
                    answers = threading.Thread(target=_pass_on, args=(there, self.connection))
                    answers.start()
                    _pass_on(self.connection, there)
                    answers.join()

        self._stack = ExitStack()
        self._server = self._stack.enter_context(running(ThreadingTCPServer(("127.0.0.1", 0), Handler)))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        return f"socks5h://127.0.0.1:{self._server.server_address[1]}"


def _pass_on(source: socket.socket, to: socket.socket) -> None:
    with suppress(OSError):  # one of the two has gone
        while piece := source.recv(65536):
            to.sendall(piece)
        to.shutdown(socket.SHUT_WR)
