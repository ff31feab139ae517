"""Context managers that clean up when their block fails. After a block without an error, they do nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager


@contextmanager
def closing_on_error(close: Callable[[], object]) -> Generator[None]:
    """Calls `close` if the block raises or is cancelled."""
    with ExitStack() as undo:
        undo.callback(close)
        yield
        undo.pop_all()


@asynccontextmanager
async def aclosing_on_error(close: Callable[[], Awaitable[object]]) -> AsyncGenerator[None]:
    """Awaits `close` if the block raises or is cancelled."""
    async with AsyncExitStack() as undo:
        undo.push_async_callback(close)
        yield
        undo.pop_all()
