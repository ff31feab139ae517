"""A server of Python's own on this machine, for as long as a context lasts."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from socketserver import ThreadingTCPServer
from typing import TypeVar

ServerT = TypeVar("ServerT", ThreadingHTTPServer, ThreadingTCPServer)


@contextmanager
def running(server: ServerT) -> Generator[ServerT]:
    """Answers requests on a thread; leaving ends it, and closes the server."""
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
