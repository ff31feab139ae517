"""Computes the requests of a batch by the server's own endpoints, some at a time. No connection is opened."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stoker.server.batches.lines import BatchLine, body_of
from stoker.server.batches.results import Response, Result, Results

if TYPE_CHECKING:
    import httpx2
    from starlette.types import ASGIApp

_NOT_NOW = (429, 503)
"""The server has no room for the request at this moment."""
_MAX_TRIES = 120
_MAX_WAIT_S = 5.0


async def run_batch(
    app: ASGIApp,
    source: Path,
    lines: list[BatchLine],
    results: Results,
    *,
    concurrency: int,
    advance: Callable[[], None],
) -> None:
    """Computes what has no result yet, in the order of `lines`.

    Args:
        app: the server.
        source: the file that holds the bodies.
        lines: every request of the batch.
        results: where each answer is written as soon as it is complete.
        concurrency: how many requests are asked at the same time.
        advance: called after each answer.

    Raises:
        OSError: an answer cannot be written.
        InvalidInput: `source` was changed meanwhile.
    """
    import httpx2

    left = iter([line for line in lines if line.custom_id not in results.done])
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=None) as client:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(_work(client, source, left, results, advance))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None


async def _work(
    client: httpx2.AsyncClient,
    source: Path,
    left: Iterator[BatchLine],
    results: Results,
    advance: Callable[[], None],
) -> None:
    for line in left:
        response = await _answer(client, line.url, body_of(source, line))
        results.add(Result(custom_id=line.custom_id, response=_recorded(response)))
        advance()


async def _answer(client: httpx2.AsyncClient, url: str, body: bytes) -> httpx2.Response:
    """The endpoint's answer; a request that found no room is asked again."""
    headers = {"content-type": "application/json"}
    response = await client.post(url, content=body, headers=headers)
    for _ in range(_MAX_TRIES):
        if response.status_code not in _NOT_NOW:
            break
        asked_s = response.headers.get("retry-after", "1")
        await asyncio.sleep(min(float(asked_s) if asked_s.isdecimal() else 1.0, _MAX_WAIT_S))
        response = await client.post(url, content=body, headers=headers)
    return response


def _recorded(response: httpx2.Response) -> Response:
    return Response(
        status_code=response.status_code,
        request_id=response.headers.get("x-request-id", ""),
        body=msgspec.Raw(msgspec.json.format(response.content, indent=-1)),
    )
