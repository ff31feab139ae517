"""Runs the HTTP server: listens, starts to load the models, and builds the application while they load.

```
listen ──► engines load the models ─────────────────────► models answer
                └──► import and build the endpoints ──► accept connections
```
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from stoker.engine.card_template import import_renderers
from stoker.lazy import lazy_module
from stoker.runtime.registry import Registry
from stoker.server.access.keys import ApiKeys
from stoker.server.config import ServerConfig
from stoker.server.observe.access_log import bare_lines
from stoker.server.transport.descriptors import make_room
from stoker.server.transport.listener import check_exposure, listening, url_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from stoker.server.observe import tracing
    from stoker.server.transport import app as application
    from stoker.server.transport import model_server
    from stoker.server.transport.model_server import ModelServer
else:
    # These imports take longer than an engine needs to load a small model.
    application = lazy_module("stoker.server.transport.app")
    model_server = lazy_module("stoker.server.transport.model_server")
    tracing = lazy_module("stoker.server.observe.tracing")

_ORDER_S = 0.5


def serve(
    registry: Registry,
    config: ServerConfig,
    on_ready: Callable[[str], None] = lambda url: None,
    on_stop: Callable[[int], None] | None = None,
    batch_concurrency: int = 8,
) -> None:
    """Serves until SIGINT or SIGTERM, then lets running requests end for up to `drain_s`.

    The server listens at once, and answers with 503 while the models are loading.

    Args:
        registry: the models; loaded here, and closed in every case.
        config: the address and the settings of the server.
        on_ready: called once with the base URL, when the models are loaded.
        on_stop: called once with the number of requests that still run, when the shutdown begins.
        batch_concurrency: number of requests of batches that run at the same time.

    Raises:
        ConfigError: the address cannot be listened on, or would be reachable without an API key; or a setting is wrong.
        StokerError: a model cannot be loaded.
        KeyboardInterrupt: SIGINT ended the server; raised after the drain.
    """
    keys = ApiKeys(config)
    check_exposure(config, keys)
    config = make_room(config)
    with listening(config) as listener, _spans(config) as spans, bare_lines(is_json=config.log_format == "json"):

        def server(loading: asyncio.Task[None]) -> ModelServer:
            batches = application.open_batches(config, batch_concurrency)
            app = application.create_app(registry, config, spans, keys, [] if batches is None else [batches])
            import_renderers()  # else the first chat would wait for this import
            when_ready = partial(on_ready, url_of(config, listener))
            return model_server.ModelServer(app, registry, config, when_ready, on_stop, batches, loading)

        with asyncio.Runner(loop_factory=_loop_factory(config)) as runner:
            runner.run(_serve(registry, server, listener))


def _loop_factory(config: ServerConfig) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Makes the event loop; None = the one of asyncio. uvloop's takes a seventh less CPU time for a token.

    With TLS, uvloop would hand over a connection only after its handshake: until then, nothing would bound the number
    of connections.
    """
    if sys.platform == "win32" or config.tls_certificate:
        return None
    import uvloop  # only here, because Windows has no uvloop

    return uvloop.new_event_loop


@contextmanager
def _spans(config: ServerConfig) -> Generator[TracerProvider | None]:
    spans = tracing.open_provider(config.otlp_endpoint) if config.otlp_endpoint else None
    try:
        yield spans
    finally:
        if spans is not None:
            spans.shutdown()


async def _ordered(registry: Registry, loading: asyncio.Task[None]) -> None:
    """Waits until the first engine has its order to load a model, before the server's modules are imported.

    Imports hold the GIL, so they would delay the reading of the model's header. The wait is bounded for slow disks.
    """
    is_ordered = asyncio.Event()
    registry.events.listen(lambda event: is_ordered.set() if event.stage == "load" else None)
    loading.add_done_callback(lambda _: is_ordered.set())
    with suppress(TimeoutError):
        async with asyncio.timeout(_ORDER_S):
            await is_ordered.wait()


async def _serve(
    registry: Registry, make_server: Callable[[asyncio.Task[None]], ModelServer], listener: socket.socket
) -> None:
    loading = asyncio.create_task(registry.start(), name="stoker-load")
    try:
        await _ordered(registry, loading)
        server = await asyncio.to_thread(make_server, loading)
        await server.serve(sockets=[listener])
    except BaseException:  # if uvicorn fails before its start-up, it does not shut down
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        await registry.close()
        raise
    server.check_loaded()
