"""The load generator reports what really happened: known delays exactly, and everything that went wrong by its name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from stoker.bench.client import ask, get
from stoker.bench.figures import Limits, figures_of
from stoker.bench.request import Answer, FailureKind, Job, Target
from stoker.errors import InvalidInput
from tests.ports import free_port
from tests.unit.bench.scripted_server import Exchange, Script, SharedClock, scripted
from tests.waiting import run

JOB = Job((("system", " be brief"), ("user", " say four words please")), output_tokens=4)
DELAYS_S = (0.7, 0.05, 0.05, 0.4)


def ask_scripted(script: Script, clock: SharedClock | None = None, **fields: Any) -> Answer:
    async def main() -> Answer:
        async with scripted(script, clock) as server:
            target = replace(server.target, **fields)
            return await (ask(target, JOB) if clock is None else ask(target, JOB, clock=clock))

    return run(main())


async def slow(exchange: Exchange) -> None:
    await exchange.head()
    for delay_s in DELAYS_S:
        await exchange.token(after_s=delay_s)
    await exchange.usage(prompt=9, completion=4, cached=2)
    await exchange.done()


def test_known_delays_are_reported() -> None:
    async def main() -> Answer:
        clock = SharedClock()
        async with scripted(slow, clock) as server:
            return await ask(server.target, JOB, clock=clock)

    answer = run(main())
    assert answer.failure is None
    assert answer.ttft_s == pytest.approx(0.7)
    assert answer.gaps_s == pytest.approx([0.05, 0.05, 0.4])
    figures = figures_of([answer], Limits(ttft_s=1, itl_s=0.2))
    assert figures.itl_max_s == pytest.approx(0.4)
    assert figures.duration_s == pytest.approx(1.2)
    assert figures.output_tokens_per_s == pytest.approx(4 / 1.2)
    assert (figures.prompt_tokens, figures.cached_tokens, figures.num_good) == (9, 2, 1)


def test_text_and_counts_are_those_of_the_server() -> None:
    answer = ask_scripted(slow)
    assert (answer.text, answer.num_output, answer.num_prompt, answer.cached_tokens) == (" a a a a", 4, 9, 2)


def test_a_request_asks_for_a_fixed_length_and_for_usage() -> None:
    bodies: list[Exchange] = []

    async def keep(exchange: Exchange) -> None:
        bodies.append(exchange)
        await slow(exchange)

    ask_scripted(keep, model="m", extra={"temperature": 0.5, "cache_prompt": True})
    (exchange,) = bodies
    assert exchange.path == "/v1/completions"
    assert exchange.body == {
        "model": "m",
        "prompt": " be brief say four words please",
        "max_tokens": 4,
        "ignore_eos": True,
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_prompt": True,
    }


def test_chat_sends_messages_and_reads_deltas() -> None:
    async def chat(exchange: Exchange) -> None:
        assert exchange.path == "/v1/chat/completions"
        assert exchange.body["messages"][0] == {"role": "system", "content": " be brief"}
        await exchange.head()
        for delta in ({"role": "assistant", "content": ""}, {"content": "Hi"}, {"content": " you"}):
            await exchange.event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        await exchange.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        await exchange.done()

    answer = ask_scripted(chat, endpoint="chat")
    assert answer.failure is None
    assert (answer.text, answer.finish_reason) == ("Hi you", "stop")
    assert answer.num_output == 2, "without usage, the events with text are counted; the one with the role is none"
    assert answer.num_prompt == 6, "without usage, words are counted"


def test_llama_server_s_cached_tokens_are_found() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.token(finish="length")
        await exchange.event({"choices": [], "timings": {"cache_n": 7, "prompt_n": 1}})
        await exchange.done()

    assert ask_scripted(script).cached_tokens == 7


async def refuse(exchange: Exchange) -> None:
    await exchange.status(429, b'{"error": {"message": "the queue is full", "code": "overloaded"}}')


async def fail_midway(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.token()
    await exchange.event({"error": {"message": "the model crashed"}})
    await exchange.raw(b"0\r\n\r\n")


async def close_early(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.token()


async def end_without_an_end(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.token()
    await exchange.raw(b"0\r\n\r\n")


async def hang(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.token()
    await asyncio.Event().wait()


async def only_keep_alive(exchange: Exchange) -> None:
    await exchange.head()
    while True:
        await exchange.raw(b"3\r\n:\n\n\r\n")
        await asyncio.sleep(0)


async def hang_up(exchange: Exchange) -> None:
    return


async def not_streamed(exchange: Exchange) -> None:
    await exchange.status(200, b'{"choices": [{"text": "hello"}]}')


async def nonsense(exchange: Exchange) -> None:
    await exchange.head()
    await exchange.event(b"no json")
    await asyncio.Event().wait()


async def no_http(exchange: Exchange) -> None:
    await exchange.raw(b"SSH-2.0-OpenSSH\r\n\r\n")


@pytest.mark.parametrize(
    ("script", "kind", "said"),
    [
        (refuse, FailureKind.REFUSED, "status 429: the queue is full"),
        (fail_midway, FailureKind.ERROR, "the model crashed"),
        (close_early, FailureKind.CLOSED, "ended before the answer did"),
        (end_without_an_end, FailureKind.CLOSED, "ended before the answer did"),
        (hang, FailureKind.STALLED, "nothing came for 0.2 s"),
        (only_keep_alive, FailureKind.STALLED, "nothing came for 0.2 s"),
        (hang_up, FailureKind.UNREACHABLE, "before the reply began"),
        (not_streamed, FailureKind.MALFORMED, "not an event stream"),
        (nonsense, FailureKind.MALFORMED, "no json"),
        (no_http, FailureKind.MALFORMED, "SSH"),
    ],
)
def test_what_a_server_does_wrong_is_named(script: Script, kind: FailureKind, said: str) -> None:
    answer = ask_scripted(script, stall_s=0.2)
    assert answer.failure is not None
    assert answer.failure.kind == kind
    assert said in answer.failure.detail


def test_nobody_there_is_unreachable() -> None:
    answer = run(ask(Target(url=f"http://127.0.0.1:{free_port()}"), JOB))
    assert answer.failure is not None
    assert answer.failure.kind == FailureKind.UNREACHABLE


def test_get_says_0_where_nothing_answers() -> None:
    assert run(get(Target(url=f"http://127.0.0.1:{free_port()}"), "/health", 5)) == (0, b"")


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://x", "http://", "http://x:port", "http://[::1"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        Target(url=url)


@pytest.mark.parametrize(
    ("url", "path"),
    [("http://x", "/v1/models"), ("http://x/v1/", "/v1/models"), ("https://x:1/llm/v1", "/llm/v1/models")],
)
def test_a_url_may_end_with_the_api_s_version(url: str, path: str) -> None:
    assert Target(url=url).path("models") == path


def test_a_failed_answer_counts_towards_no_time_and_no_rate() -> None:
    scripts: list[Callable[[Exchange], Coroutine[Any, Any, None]]] = [slow, fail_midway, slow]

    async def main() -> list[Answer]:
        clock, left = SharedClock(), iter(scripts)
        async with scripted(lambda exchange: next(left)(exchange), clock) as server:
            return [await ask(server.target, JOB, clock=clock) for _ in scripts]

    answers = run(main())
    figures = figures_of(answers, Limits(ttft_s=10, itl_s=10))
    assert figures.failures == {"error event": 1}
    assert figures.examples == {"error event": "the model crashed"}
    assert (figures.num_requests, figures.output_tokens, figures.num_good) == (3, 8, 2)
    assert figures.ttft_p50_s == pytest.approx(0.7)
