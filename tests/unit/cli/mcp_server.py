"""An MCP server for tests, over stdin and stdout: `python -m tests.unit.cli.mcp_server`."""

from __future__ import annotations

import os
import time

from mcp.server import MCPServer

server = MCPServer("tested")


@server.tool()
def add(first: int, second: int) -> int:
    """Adds two numbers."""
    return first + second


@server.tool()
def fail() -> str:
    """Always fails."""
    raise ValueError("no luck")


@server.tool()
def long() -> str:
    """Says very much."""
    return "x" * 50_000


@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(3)


@server.tool()
def hang() -> str:
    """Answers much too late."""
    time.sleep(600)
    return ""


if __name__ == "__main__":
    server.run()
