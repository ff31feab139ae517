"""Starts or connects to the MCP servers of `--mcp`, and calls their tools. It asks neither the model nor the user."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO, cast

import msgspec

from stoker.cli.later import httpx2, mcp
from stoker.errors import ConfigError, reason_of

_START_S = 30.0
"""Maximum time until a server has started and listed its tools, in seconds."""
_CALL_S = 60.0
_CLOSE_S = 10.0
_MAX_PAGES = 100
_MAX_RESULT_CHARS = 16_384


class ServerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach one MCP server, as an entry of `mcpServers`: a program to start, or the URL of a running server."""

    command: str = ""
    args: list[str] = []
    env: dict[str, str] | None = None
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] = {}


class _ServersFile(msgspec.Struct, frozen=True):
    servers: dict[str, ServerSpec] = msgspec.field(name="mcpServers")


def server_specs(given: Sequence[str]) -> dict[str, ServerSpec]:
    """The servers that the values of `--mcp` name, by name. A value is a URL, a file with `mcpServers`, or a command.

    Raises:
        ConfigError: a value is empty or not a command, or a file cannot be read or is not valid.
    """
    specs: dict[str, ServerSpec] = {}
    for value in given:
        if value.startswith(("http://", "https://")):
            specs[value] = ServerSpec(url=value)
        elif value.endswith(".json") and Path(value).expanduser().is_file():
            specs |= _from_file(Path(value).expanduser())
        else:
            specs[value] = _from_command(value)
    return specs


def _from_command(value: str) -> ServerSpec:
    try:
        program, *arguments = shlex.split(value)
    except ValueError as error:
        raise ConfigError(f"--mcp {value!r} is not a command: {error}", key="mcp") from error
    return ServerSpec(command=program, args=arguments)


def _from_file(path: Path) -> dict[str, ServerSpec]:
    try:
        specs = msgspec.json.decode(path.read_bytes(), type=_ServersFile).servers
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"--mcp {path} cannot be read: {reason_of(error)}", key="mcp") from error
    for name, spec in specs.items():
        if not spec.command and not spec.url:
            raise ConfigError(f"--mcp {path}: the server {name!r} has neither `command` nor `url`", key="mcp")
    return specs


@dataclass(frozen=True, slots=True)
class _Tool:
    server: str
    name: str
    """The server's own name of the tool."""
    definition: Mapping[str, Any]


@dataclass(slots=True)
class Toolbox:
    """The tools of all MCP servers. Entering the toolbox starts the servers, leaving it ends them.

    In between, tools can be called. A thread of its own runs an event loop with one task that opens and closes all
    connections, because a connection belongs to the task that opened it.
    """

    specs: Mapping[str, ServerSpec]
    _tools: dict[str, _Tool] = field(default_factory=dict[str, _Tool])
    _clients: dict[str, mcp.Client] = field(default_factory=dict[str, "mcp.Client"])
    _loop: asyncio.AbstractEventLoop | None = None
    _stopping: asyncio.Event | None = None
    _started: Future[None] = field(default_factory=Future[None])
    _thread: threading.Thread | None = None

    @property
    def definitions(self) -> list[Mapping[str, Any]]:
        """The definitions of all tools, in OpenAI's format."""
        return [tool.definition for tool in self._tools.values()]

    def server_of(self, name: str) -> str:
        """The name of the server that offers a tool."""
        return self._tools[name].server

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Calls a tool and returns its result as text of bounded length. Errors become text, for the model to read."""
        assert self._loop is not None, "called inside of the block"
        tool = self._tools[name]
        asked = self._clients[tool.server].call_tool(tool.name, arguments)
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(asked, _CALL_S), self._loop)
        try:
            return _bounded(_text(future.result(_CALL_S + _CLOSE_S)))
        except TimeoutError:
            return f"error: the MCP server {tool.server} did not answer within {_CALL_S:g} s"
        except Exception as error:  # noqa: BLE001  # any error of another program; the conversation goes on
            return _bounded(f"error: the MCP server {tool.server} failed: {_cause(error)}")
        finally:
            future.cancel()

    def __enter__(self) -> Self:
        """Starts the servers.

        Raises:
            ConfigError: a server does not start or answer in time, or the package `mcp` is not installed.
        """
        try:
            _ = mcp.Client
        except ImportError as error:
            message = "--mcp needs the package mcp; install it with: pip install 'stoker[mcp]'"
            raise ConfigError(message, key="mcp") from error
        self._thread = threading.Thread(target=self._run, name="stoker-mcp", daemon=True)
        self._thread.start()
        try:
            self._started.result(_START_S * max(1, len(self.specs)) + _CLOSE_S)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        loop, stopping, thread = self._loop, self._stopping, self._thread
        if loop is not None and stopping is not None and not loop.is_closed():
            loop.call_soon_threadsafe(stopping.set)
        if thread is not None:
            thread.join(_CLOSE_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  # raised by `__enter__`, which waits for it
            if not self._started.done():
                self._started.set_exception(error)

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        async with AsyncExitStack() as stack:
            for name, spec in self.specs.items():
                try:
                    async with asyncio.timeout(_START_S):
                        await self._connect(stack, name, spec)
                except TimeoutError as error:
                    message = f"the MCP server {name} did not answer within {_START_S:g} s"
                    raise ConfigError(message, key="mcp") from error
                except Exception as error:
                    raise ConfigError(f"the MCP server {name} does not start: {_cause(error)}", key="mcp") from error
            self._started.set_result(None)
            await self._stopping.wait()

    async def _connect(self, stack: AsyncExitStack, name: str, spec: ServerSpec) -> None:
        transport = await _transport(stack, spec)
        client = self._clients[name] = await stack.enter_async_context(_client(transport))
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                self._add(name, tool.name, tool.description or "", tool.input_schema)
            cursor = page.next_cursor
            if cursor is None:
                return

    def _add(self, server: str, name: str, description: str, schema: Mapping[str, Any]) -> None:
        ours = name if name not in self._tools else f"{name}-{len(self._tools)}"
        function = {"name": ours, "description": description, "parameters": dict(schema)}
        self._tools[ours] = _Tool(server, name, {"type": "function", "function": function})


def _client(transport: Any) -> mcp.Client:
    return mcp.Client(transport, read_timeout_seconds=_CALL_S)


async def _transport(stack: AsyncExitStack, spec: ServerSpec) -> object:
    """The transport to a server. The stderr of a program is shown with `-v` only."""
    if not spec.command:
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=spec.headers, timeout=_CALL_S))
        return mcp.client.streamable_http.streamable_http_client(spec.url, http_client=http)
    output = stack.enter_context(_program_output())
    program = mcp.StdioServerParameters(command=spec.command, args=spec.args, env=spec.env, cwd=spec.cwd)
    return mcp.stdio_client(program, errlog=output)


@contextmanager
def _program_output() -> Generator[TextIO]:
    if logging.getLogger().isEnabledFor(logging.INFO):
        yield sys.stderr
        return
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        yield nowhere


def _text(result: mcp.types.CallToolResult) -> str:
    texts = [str(getattr(block, "text", f"({block.type})")) for block in result.content]
    if not texts and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return ("error: " if result.is_error else "") + "\n".join(texts)


def _bounded(text: str) -> str:
    if len(text) <= _MAX_RESULT_CHARS:
        return text
    return f"{text[:_MAX_RESULT_CHARS]}\n(cut off after {_MAX_RESULT_CHARS} of {len(text)} characters)"


def _cause(error: BaseException) -> str:
    """The message of an error; of an exception group, that of its first error."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return f"{error}" or type(error).__name__
