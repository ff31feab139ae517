"""The forms that the target of a request may have, through a real socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.unit.server.test_listener import server
from tests.waiting import BOUND_S


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    with server(root_path="/llm") as url:
        parts = urlsplit(url)
        yield parts.hostname or "", parts.port or 0


def exchange(address: tuple[str, int], request: str) -> str:
    with socket.create_connection(address, BOUND_S) as connection:
        connection.sendall(request.encode("latin-1") + b"Connection: close\r\n\r\n")
        with connection.makefile("rb") as answer:
            return answer.read().decode()


@pytest.mark.parametrize(
    "target",
    [
        "/v1/models",
        "http://localhost/v1/models",
        "HTTP://localhost:1/v1/models",
        "https://localhost/v1/models?reload=0",
        "http://localhost/llm/v1/models",
        "http://localhost/v1/%6dodels",
        "/v1/models/",
        "/llm/v1/models//?reload=0",
    ],
)
def test_a_whole_url_is_as_good_as_a_path(address: tuple[str, int], target: str):
    answer = exchange(address, f"GET {target} HTTP/1.1\r\nHost: localhost\r\n")
    assert answer.startswith("HTTP/1.1 200 "), answer
    assert '"id":"tiny"' in answer


@pytest.mark.parametrize("target", ["/", "//", "/llm/"])
def test_the_root_keeps_its_slash(address: tuple[str, int], target: str):
    assert exchange(address, f"GET {target} HTTP/1.1\r\nHost: localhost\r\n").endswith("Ollama is running")


def test_a_url_without_a_path_is_the_root(address: tuple[str, int]):
    assert exchange(address, "GET http://localhost HTTP/1.1\r\nHost: localhost\r\n").endswith("Ollama is running")


def test_its_host_counts_and_not_the_header(address: tuple[str, int]):
    rebound = exchange(address, "GET http://evil.example.com/v1/models HTTP/1.1\r\nHost: localhost\r\n")
    assert rebound.startswith("HTTP/1.1 403 "), rebound
    own = exchange(address, "GET http://localhost/v1/models HTTP/1.1\r\nHost: evil.example.com\r\n")
    assert own.startswith("HTTP/1.1 200 "), own
