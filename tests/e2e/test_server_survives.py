"""What clients of a real server see when its engine is killed, and when other clients leave."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai import APIError, OpenAI
from psutil import Process

from tests.waiting import BOUND_S, wait_until

pytestmark = pytest.mark.slow

LONG: dict[str, Any] = {"prompt": "Tell me a story.", "max_tokens": 2000, "ignore_eos": True, "stream": True}


def health(url: str) -> httpx.Response:
    return httpx.get(f"{url}/health", trust_env=False, timeout=BOUND_S)


def num_running(url: str) -> int | None:
    """As of the newest heartbeat, about a second ago."""
    return health(url).json()["models"][0].get("num_running")


def engine_of(pid: int) -> Process:
    (engine,) = [child for child in Process(pid).children() if "stoker.assembly" in child.cmdline()]
    return engine


def test_killed_engine_is_an_error_event_and_is_replaced(smollm2_server: Any):
    url: str = smollm2_server.url
    num_restarts = health(url).json()["models"][0]["num_restarts"]
    with httpx.stream("POST", f"{url}/v1/completions", json=LONG, trust_env=False, timeout=BOUND_S) as response:
        parts = response.iter_bytes()
        received = next(parts)
        engine_of(smollm2_server.pid).kill()
        received += b"".join(parts)
    assert b'"code":"engine_crashed"' in received
    assert b"[DONE]" not in received
    wait_until(lambda: health(url).status_code == 200)
    assert health(url).json()["models"][0]["num_restarts"] == num_restarts + 1
    body = {"prompt": "1, 2,", "max_tokens": 2, "ignore_eos": True}
    reply = httpx.post(f"{url}/v1/completions", json=body, trust_env=False, timeout=BOUND_S)
    assert reply.json()["usage"]["completion_tokens"] == 2


def test_killed_engine_reaches_the_openai_client_as_an_error(smollm2_server: Any):
    url: str = smollm2_server.url
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        stream: Any = client.completions.create(
            model="smollm2", prompt="Tell me a story.", max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        engine_of(smollm2_server.pid).kill()
        with pytest.raises(APIError):
            list(stream)
    wait_until(lambda: health(url).status_code == 200)


def test_health_is_red_while_there_is_no_engine(smollm2_server: Any):
    refused = next(filter(None, (health_of_none(smollm2_server) for _ in range(20))))
    assert refused.json()["status"] == "restarting"
    assert "retry-after" in refused.headers
    wait_until(lambda: health(smollm2_server.url).status_code == 200)


def health_of_none(server: Any) -> httpx.Response | None:
    """While a killed engine is replaced; None if the next one was there before this process could look."""
    url: str = server.url
    num_restarts = health(url).json()["models"][0]["num_restarts"]
    engine_of(server.pid).kill()
    while (found := health(url)).status_code == 200:
        if found.json()["models"][0]["num_restarts"] > num_restarts:
            return None
    return found


def test_client_that_leaves_frees_its_place(smollm2_server: Any):
    url: str = smollm2_server.url
    for _ in range(2):
        with httpx.stream("POST", f"{url}/v1/completions", json=LONG, trust_env=False, timeout=BOUND_S) as response:
            assert response.status_code == 200
            wait_until(lambda: num_running(url) == 1)
        wait_until(lambda: num_running(url) == 0)
