"""Computes the requests of a batch through the ASGI application's own endpoints, without network connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stoker.lazy import lazy_module
from stoker.server.batches.lines import BatchLine, body_of
from stoker.server.batches.results import Response, Result, Results

if TYPE_CHECKING:
    import httpx2
    from starlette.types import ASGIApp
else:
    httpx2 = lazy_module("httpx2")  # needed only by servers that compute batches

_NOT_NOW = (429, 503, 529)
"""Statuses that mean that the server has no room for the request at the moment."""
_MAX_TRIES = 121
_MAX_WAIT_S = 5.0


async def run_batch(
    app: ASGIApp,
    source: Path,
    lines: list[BatchLine],
    results: Results,
    *,
    concurrency: int,
    advance: Callable[[], None],
    gate: asyncio.Semaphore | None = None,
    max_tries: int | None = _MAX_TRIES,
) -> None:
    """Computes all requests that have no result yet, in the order of `lines`.

    Args:
        app: the application of the server.
        source: the input file, which contains the bodies.
        lines: every request of the batch.
        results: receives each answer as soon as it is complete.
        concurrency: number of requests that run at the same time.
        advance: called after each answer.
        gate: bounds the running requests of several batches together; None = only `concurrency` does.
        max_tries: how often a request is sent while the server has no room, before the refusal becomes its answer;
            None = without limit.

    Raises:
        OSError: an answer cannot be written.
        InvalidInput: `source` was changed during the run.
    """
    left = iter([line for line in lines if line.custom_id not in results.done])
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    room = gate or asyncio.Semaphore(concurrency)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=None) as client:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(_work(_Asking(client, source, room, max_tries), left, results, advance))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None


@dataclass(frozen=True, slots=True)
class _Asking:
    """How requests are sent to the application."""

    client: httpx2.AsyncClient
    source: Path
    room: asyncio.Semaphore
    max_tries: int | None


async def _work(asking: _Asking, left: Iterator[BatchLine], results: Results, advance: Callable[[], None]) -> None:
    for line in left:
        body = await asyncio.to_thread(body_of, asking.source, line)  # up to 64 MiB
        response = await _answer(asking, line.url, body)
        results.add(Result(custom_id=line.custom_id, response=_recorded(response)))
        advance()


async def _answer(asking: _Asking, url: str, body: bytes) -> httpx2.Response:
    """The endpoint's answer. A request that the server has no room for is sent again after a while."""
    num_tries = 0
    while True:
        async with asking.room:
            response = await asking.client.post(url, content=body, headers={"content-type": "application/json"})
        num_tries += 1
        if response.status_code not in _NOT_NOW or num_tries == asking.max_tries:
            return response
        asked_s = response.headers.get("retry-after", "1")
        await asyncio.sleep(min(float(asked_s) if asked_s.isdecimal() else 1.0, _MAX_WAIT_S))


def _recorded(response: httpx2.Response) -> Response:
    return Response(
        status_code=response.status_code,
        request_id=response.headers.get("x-request-id", ""),
        body=msgspec.Raw(msgspec.json.format(response.content, indent=-1)),
    )
