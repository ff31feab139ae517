"""The result of `AsyncLLM.generate` and `.chat`: completions to await together, or to iterate over one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Generator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar

from stoker.llm.completion import Completion
from stoker.llm.progress_bar import progress_bar

T = TypeVar("T", Completion, list[Completion])

Start: TypeAlias = Callable[[], Coroutine[Any, Any, list[Coroutine[Any, Any, Completion]]]]
"""Returns one coroutine per answer. It may load the model first."""


class AsyncCompletions(Coroutine[Any, Any, T], AsyncIterable[Completion], Generic[T]):
    """A coroutine of the whole result that is also an asynchronous iterator over its answers, in the prompts' order.

    Nothing begins before the first `await` or the first iteration; all prompts are then computed together. The first
    error, cancellation, or leaving the loop early stops those that are still being computed.

    Example:
        >>> async for completion in llm.generate(["a", "b"]):  # doctest: +SKIP
        ...     print(completion.text)
    """

    def __init__(self, start: Start, *, is_single: bool, show_progress: bool | None) -> None:
        self._start = start
        self._is_single = is_single
        self._show_progress = show_progress
        self._whole: Coroutine[Any, Any, T] | None = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine().__await__()

    def __aiter__(self) -> AsyncGenerator[Completion]:
        return self._each()

    def send(self, value: Any) -> Any:
        """Coroutine protocol, so that `asyncio.create_task` accepts this object."""
        return self._coroutine().send(value)

    def throw(self, typ: Any, val: Any = None, tb: TracebackType | None = None, /) -> Any:
        """Coroutine protocol: raises an error inside the coroutine."""
        return self._coroutine().throw(typ if val is None else val)

    def close(self) -> None:
        """Coroutine protocol: stops the computation if it was started."""
        if self._whole is not None:
            self._whole.close()

    def _coroutine(self) -> Coroutine[Any, Any, T]:
        if self._whole is None:
            self._whole = self._all()
        return self._whole

    async def _all(self) -> T:
        async with aclosing(self._each()) as each:
            completions = [completion async for completion in each]
        return completions[0] if self._is_single else completions  # type: ignore[return-value]

    async def _each(self) -> AsyncGenerator[Completion]:
        answers = await self._start()
        with progress_bar(len(answers), is_shown=self._show_progress) as advance:
            tasks = [asyncio.create_task(_counted(answer, advance)) for answer in answers]
            failed = _first_failure(tasks)
            try:
                for task in tasks:
                    await asyncio.wait([task, failed], return_when=asyncio.FIRST_COMPLETED)
                    if failed.done():
                        failed.result()
                    yield task.result()
            finally:
                failed.cancel()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


async def _counted(answer: Coroutine[Any, Any, Completion], advance: Callable[[], None]) -> Completion:
    completion = await answer
    advance()
    return completion


def _first_failure(tasks: list[asyncio.Task[Completion]]) -> asyncio.Future[None]:
    """A future that gets the first error of any task, so that an error is raised without waiting for earlier tasks."""
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def note(task: asyncio.Task[Completion]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not failed.done():
            failed.set_exception(error)

    for task in tasks:
        task.add_done_callback(note)
    return failed
