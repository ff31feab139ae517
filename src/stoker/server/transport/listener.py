"""The listening socket: TCP or Unix domain, with or without TLS, and never open to other machines by accident."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISSOCK

from stoker.errors import ConfigError, reason_of
from stoker.server.access.hosts import is_local
from stoker.server.access.keys import ApiKeys
from stoker.server.config import ServerConfig
from stoker.server.transport.descriptors import Listener

BACKLOG = 2048
"""Maximum number of connections that wait to be accepted."""

_MAX_UNSENT_BYTES = 128 * 2**10
"""Maximum number of bytes that the kernel buffers for a client that does not read. Without this bound the kernel would
buffer megabytes, that is, whole answers, before back-pressure showed the server that the client is slow."""

_SOCKET_MODE = 0o660
"""Mode of the Unix socket: user and group may connect; the folder's permissions decide who can reach it."""


@contextmanager
def listening(config: ServerConfig) -> Generator[socket.socket]:
    """Opens the listening socket before the models load, so that a taken port or a wrong setting fails at once.

    The socket listens at once too: two servers can bind the same address, and only the second call of `listen` fails.

    Raises:
        ConfigError: the address cannot be used, or TLS cannot be set up.
    """
    _check_tls(config)
    with _unix_listener(config) if config.unix_socket else _bind(config) as listener:
        try:
            yield listener
        finally:
            if config.unix_socket:
                Path(config.unix_socket).unlink(missing_ok=True)


def check_exposure(config: ServerConfig, keys: ApiKeys) -> None:
    """Checks that a server that other machines can reach has an API key, or that the settings permit none.

    Raises:
        ConfigError: other machines could use the server without a key, and the settings do not permit that.
    """
    if config.unix_socket or is_local(config.host) or keys.has_clients or config.allow_unauthenticated:
        return
    message = (
        f"listening on {config.host} without an API key lets other machines use this server: set --api-key or "
        f"--api-key-file, or pass --allow-unauthenticated"
    )
    raise ConfigError(message, key="host")


def _check_tls(config: ServerConfig) -> None:
    """Reads the TLS files in advance, because uvicorn would fail with a traceback."""
    if not config.tls_certificate:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key, password=_no_password)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        files = f"{config.tls_certificate} and {config.tls_key}"
        message = f"TLS cannot be set up with {files}, which must be PEM files: {reason_of(error)}"
        raise ConfigError(message, key="tls_certificate") from error


def url_of(config: ServerConfig, listener: socket.socket) -> str:
    """The base URL of the server for clients."""
    if config.unix_socket:
        return f"unix:{config.unix_socket}"
    host = f"[{config.host}]" if ":" in config.host else config.host
    scheme = "https" if config.tls_certificate else "http"
    return f"{scheme}://{host}:{listener.getsockname()[1]}{config.root_path}"


def _bind(config: ServerConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets that name their protocol: without it, a body follows its head 40 ms later
    listener = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # accepted sockets inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MAX_UNSENT_BYTES)
        listener.bind((config.host, config.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        other = "; --port 0 picks a free one" if error.errno == errno.EADDRINUSE else ""
        message = f"cannot listen on {config.host} port {config.port}: {reason_of(error)}{other}"
        raise ConfigError(message, key="port") from error
    return listener


def _unix_listener(config: ServerConfig) -> socket.socket:
    path = Path(config.unix_socket)
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigError("this system has no Unix domain sockets", key="unix_socket")
    listener = Listener(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_left_behind(path)
        listener.bind(str(path))
        path.chmod(_SOCKET_MODE)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {path}: {reason_of(error)}", key="unix_socket") from error
    return listener


def _remove_left_behind(path: Path) -> None:
    """Removes a Unix socket without a listener, which a killed server leaves on disk."""
    with suppress(FileNotFoundError):
        if not S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(f"{path} exists and is not a socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()


def _no_password() -> str:
    raise ValueError("the private key is encrypted; give a key without a password")
