"""An MCP server for tests: `python -m tests.unit.cli.mcp_server` over stdin and stdout, with a port over HTTP."""

from __future__ import annotations

import os
import sys
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
    if sys.argv[1:]:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
