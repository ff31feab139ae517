"""A runtime that plays a script, and the smallest clients to ask it through the real application."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import Any, Unpack, cast

import httpx
import msgspec
import numpy as np
from starlette.types import ASGIApp

from stoker.core.slot_state import SlotState
from stoker.engine.cards import AdapterCard, FillTokens, ModelCard
from stoker.engine.config import AdapterSpec
from stoker.engine.health import Health
from stoker.engine.protocol import Accepted, Output, PositionLogprobs, PromptToken, Submit, TokenLogprob, Usage
from stoker.engine.question_messages import (
    A,
    AdapterList,
    Answer,
    ChangeAdapters,
    CountTokens,
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    EndReasoning,
    EndSession,
    Erased,
    EraseSlots,
    ListSessions,
    ListSlots,
    Look,
    Question,
    ReasoningEnded,
    RestoreSlot,
    SaveSlot,
    SessionEnded,
    SessionList,
    SlotFiled,
    SlotList,
    TokenCount,
    Tokenize,
    Tokenized,
    as_answer_to,
)
from stoker.errors import InvalidInput, ModelNotLoaded, UnsupportedParameter
from stoker.runtime.registry import Registry, ServedModel
from stoker.server.config import ServerConfig
from stoker.server.transport.app import create_app
from stoker.text.chat_formats.probe import ChatFormat, find_format
from stoker.text.chat_template import ChatTemplate
from stoker.text.messages import Message, RenderOptions


@cache
def _qwen3_format() -> ChatFormat:
    """The format of a model that reasons and calls tools."""
    return find_format(ChatTemplate(Path("tests/golden/chat_templates/qwen3.jinja").read_text()))


CARD = ModelCard(
    name="tiny",
    backend="scripted",
    architecture="test",
    path="/nowhere/tiny.gguf",
    vocab_size=300,
    trained_context=4096,
    context_size=2048,
    kv_tokens=4096,
    parallel=4,
    max_queue=8,
    chat_template=None,
    bos_token="",
    eos_token="",
    num_parameters=135,
    size_bytes=1000,
    created=1700000000,
    fill_tokens=FillTokens(prefix=1, suffix=2, middle=3),
)

LOADING = Health(is_ready=False, state="starting")

Step = str | dict[str, Any] | Exception | asyncio.Event
"""A text, the fields of an `Output`, an error to raise, or an event to wait for."""


class FakeRuntime:
    """Answers every request with `script(submit)`. The last step gets a `finish_reason` unless it is an error."""

    def __init__(self, script: Callable[[Submit], Iterable[Step]] = lambda submit: ["Hel", "lo", "!"]) -> None:
        self.script = script
        self.refuse: Callable[[Submit], Exception | None] = lambda submit: None
        self.relaxed: tuple[str, ...] = ()
        self.accept_gate: asyncio.Event | None = None
        self.state = Health(is_ready=True, state="ready")
        self.model_card = CARD
        self.submits: list[Submit] = []
        self.embeds: list[Embed] = []
        self.embed_gate: asyncio.Event | None = None
        self.embed_error: Exception | None = None
        self.rendered: list[tuple[Sequence[Message], dict[str, Any]]] = []
        self.held: set[str] = set()
        self.slot_states: list[SlotState] = []
        self.erased: list[int | None] = []
        self.ended: list[str] = []
        self.filed: list[tuple[str, int, str]] = []
        self.adapters: list[AdapterCard] = []
        self.adapter_changes: list[tuple[AdapterSpec | None, str | None, dict[int, float] | None]] = []
        self.tokenized: list[tuple[str, bool, bool]] = []
        self.num_starts = self.num_closes = 0
        self.closed = asyncio.Event()
        self._arrivals: asyncio.Queue[str] = asyncio.Queue()

    @property
    def card(self) -> ModelCard:
        if self.state == LOADING:
            raise ModelNotLoaded("the model is still loading")
        return self.model_card

    async def start(self) -> ModelCard:
        self.num_starts += 1
        return self.card

    async def close(self) -> None:
        self.num_closes += 1
        self.closed.set()

    def health(self) -> Health:
        asyncio.get_running_loop()  # it belongs to one, as that of an engine process does
        return self.state

    @property
    def chat_format(self) -> ChatFormat:
        return _qwen3_format()

    def render_chat(self, messages: Sequence[Message], **options: Unpack[RenderOptions]) -> str:
        flags = {name: options.get(name) for name in ("add_generation_prompt", "continue_final_message")}
        given = {"tools": tools} if (tools := options.get("tools")) else {}
        self.rendered.append((messages, {**flags, **given, **(options.get("template_kwargs") or {})}))
        return "".join(f"<{message.role}>{message.text}" for message in messages)

    async def ask(self, question: Question[A]) -> A:
        return as_answer_to(question, await self._answer(question))

    def begin_with(self, adapters: Sequence[AdapterSpec]) -> None:
        self.adapter_changes.clear()

    async def _answer(self, question: Question[Any]) -> Answer:
        match question:
            case Tokenize():
                return self._tokenize(question)
            case CountTokens() | ListSessions() | EndSession():
                return self._answer_shortly(question)
            case Detokenize(token_ids=token_ids):
                if any(not 0 <= token_id < CARD.vocab_size for token_id in token_ids):
                    raise InvalidInput("a token id is outside the vocabulary", parameter="tokens")
                raw = bytes(token_id for token_id in token_ids if token_id < 256)
                return Detokenized("q", raw.decode("utf-8", "replace"))
            case Embed():
                return await self._embed(question)
            case ListSlots():
                return SlotList("q", self.slot_states)
            case EraseSlots():
                self.erased.append(question.slot)
                return Erased("q", 7)
            case SaveSlot() | RestoreSlot():
                action = "save" if isinstance(question, SaveSlot) else "restore"
                self.filed.append((action, question.slot, question.filename))
                return SlotFiled("q", 9, 1000, 0.25)
            case ChangeAdapters():
                self.adapter_changes.append((question.load, question.unload, question.scales))
                self.model_card = msgspec.structs.replace(self.model_card, adapters=self.adapters)
                return AdapterList("q", self.adapters)
            case Look():
                raise UnsupportedParameter("this runtime cannot be watched")
            case _:
                return self._end_reasoning(question)

    def _end_reasoning(self, question: Question[Any]) -> ReasoningEnded:
        assert isinstance(question, EndReasoning), question
        self.ended.append(question.reply_id)
        return ReasoningEnded("q", 1)

    def _answer_shortly(self, question: CountTokens | ListSessions | EndSession) -> Answer:
        match question:
            case CountTokens():
                return TokenCount("q", len(self._tokenize(Tokenize(str(question.prompt))).token_ids))
            case ListSessions():
                return SessionList("q", [])
            case EndSession():
                return SessionEnded("q", False)

    def _tokenize(self, question: Tokenize) -> Tokenized:
        """One token per byte, as the scripted model has it; BOS is 256."""
        self.tokenized.append((question.text, question.wants_bos, question.parse_special))
        raw = question.text.encode()
        ids, pieces = list(raw), [raw[i : i + 1] for i in range(len(raw))]
        return Tokenized("q", [256, *ids], [b"<s>", *pieces]) if question.wants_bos else Tokenized("q", ids, pieces)

    async def _embed(self, embed: Embed) -> Embedded:
        """Three numbers that begin with the length of an input; of a ranked one, just that: one token per character."""
        self.embeds.append(embed)
        self._arrivals.put_nowait("")
        self.held.add(f"embed-{len(self.embeds)}")
        try:
            if self.embed_error is not None:
                raise self.embed_error
            if self.embed_gate is not None:
                await self.embed_gate.wait()
        finally:
            self.held.discard(f"embed-{len(self.embeds)}")
        lengths = [len(given) for given in embed.inputs]
        size = 1 if embed.query is not None else min(embed.dimensions or 3, 3)
        rows = np.array([[length, 0.5, -0.25][:size] for length in lengths], dtype="<f4")
        return Embedded("q", rows.tobytes(), size, lengths)

    async def generate(self, submit: Submit) -> AsyncGenerator[Accepted | Output, None]:
        self.submits.append(submit)
        self.held.add(submit.request_id)
        self._arrivals.put_nowait(submit.request_id)
        try:
            if self.accept_gate is not None:
                await self.accept_gate.wait()
            if error := self.refuse(submit):
                raise error
            yield Accepted(submit.request_id, len(submit.prompt), self.relaxed)
            async with aclosing(self._play(submit)) as outputs:
                async for output in outputs:
                    yield output
        finally:
            self.held.discard(submit.request_id)

    async def arrived(self, count: int) -> None:
        """Waits until so many more requests have come."""
        for _ in range(count):
            await self._arrivals.get()

    async def _wait(self, gate: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (gate, self.closed)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self.closed.is_set():
            raise ModelNotLoaded("the model was closed")

    async def _play(self, submit: Submit) -> AsyncGenerator[Output, None]:
        steps = list(self.script(submit))
        num_tokens = 0
        for number, step in enumerate(steps):
            if isinstance(step, asyncio.Event):
                await self._wait(step)
                continue
            if isinstance(step, Exception):
                raise step
            num_tokens += 1
            fields: dict[str, Any] = {"text": step} if isinstance(step, str) else dict(step)
            if number == len(steps) - 1:
                fields.setdefault("finish_reason", "stop")
            if submit.echo and num_tokens == 1:
                fields.setdefault("prompt", echo(submit))
            usage = Usage(prompt_tokens=len(submit.prompt), completion_tokens=num_tokens, cached_tokens=3)
            given: dict[str, Any] = {"token_ids": [num_tokens], "usage": usage, **fields}
            yield Output(submit.request_id, **given)


def echo(submit: Submit) -> list[PromptToken]:
    """One token per character or id, with log-probabilities but for the first if they are asked for."""
    pieces = [part.encode() if isinstance(part, str) else b"<%d>" % part for part in submit.prompt]
    wants = submit.sampling.logprobs is not None
    return [PromptToken(i, piece, -float(i) if i and wants else None) for i, piece in enumerate(pieces)]


def logprob(text: str | bytes, value: float, token_id: int = 1) -> TokenLogprob:
    return TokenLogprob(token_id, value, text.encode() if isinstance(text, str) else text)


def position(text: str | bytes, value: float, *top: TokenLogprob) -> PositionLogprobs:
    return PositionLogprobs(logprob(text, value), top)


def served(runtime: FakeRuntime) -> ServedModel:
    return ServedModel(("tiny", "alias/of-tiny"), runtime)


def registry_of(*models: ServedModel, strict: bool = False) -> Registry:
    """The models are there already, and stay."""
    registry = Registry(strict=strict)
    for model in models:
        registry.adopt(model)
    return registry


def make_app(runtime: FakeRuntime, *, strict: bool = False, **settings: Any) -> ASGIApp:
    return create_app(registry_of(served(runtime), strict=strict), ServerConfig(**settings))


def ask(
    app: ASGIApp, method: str, path: str, *, client: tuple[str, int] | None = ("127.0.0.1", 1), **kwargs: Any
) -> httpx.Response:
    """One request from an address, or from a local socket; a stream is read to its end."""

    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False, client=cast("Any", client))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            return await http.request(method, path, **kwargs)

    return _runner().run(go())


@cache
def _runner() -> asyncio.Runner:
    """One loop, with one thread, for thousands of requests: to begin and end them costs as much as to answer."""
    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner


def chat(runtime: FakeRuntime, **body: Any) -> httpx.Response:
    body.setdefault("messages", [{"role": "user", "content": "hi"}])
    return ask(make_app(runtime), "POST", "/v1/chat/completions", json=body)


def complete(runtime: FakeRuntime, **body: Any) -> httpx.Response:
    body.setdefault("prompt", "hi")
    return ask(make_app(runtime), "POST", "/v1/completions", json=body)


def events(response: httpx.Response) -> list[Any]:
    """The decoded events of a stream; `[DONE]` stays a string."""
    assert response.status_code == 200, response.text
    blocks = response.text.split("\n\n")
    assert blocks.pop() == "", "a stream ends with an empty line"
    payloads = [block.removeprefix("data: ") for block in blocks if block != ":"]
    return [payload if payload == "[DONE]" else msgspec.json.decode(payload) for payload in payloads]


class RawClient:
    """One request at the level of ASGI messages: it can leave whenever it likes.

    It takes `room` messages; for more the server has to wait until some are read. 0 = any number. Without a body, it
    is a GET.
    """

    def __init__(
        self, app: ASGIApp, path: str, body: dict[str, Any] | None = None, *, query: str = "", room: int = 0
    ) -> None:
        self._app = app
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        sent = b"" if body is None else msgspec.json.encode(body)
        self._inbox.put_nowait({"type": "http.request", "body": sent, "more_body": False})
        self.received: asyncio.Queue[dict[str, Any]] = asyncio.Queue(room)
        self.blocked = asyncio.Event()
        """Set once the server waits for this client to read."""
        self._scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET" if body is None else "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [],
            "client": ("127.0.0.1", 1),
            "server": ("test", 80),
        }
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        await self._app(self._scope, self._receive, self._send)

    async def _receive(self) -> Any:
        message = await self._inbox.get()
        if message["type"] == "http.disconnect":
            self.leave()  # as in uvicorn, whoever asks again hears it again
        return message

    async def _send(self, message: Any) -> None:
        if self.received.full():
            self.blocked.set()
        await self.received.put(message)

    def leave(self) -> None:
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def next_body(self) -> bytes:
        while (message := await self.received.get())["type"] != "http.response.body":
            pass
        return message["body"]
