"""Tracing: one OpenTelemetry span per HTTP request, with times, sizes and names, but never text. Off by default.

The attributes follow OpenTelemetry's conventions for HTTP servers and for generative AI. Only this module imports the
packages, which are an optional extra. Without an endpoint, they are not imported and the layer does not exist.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker.errors import ConfigError
from stoker.lazy import lazy_module
from stoker.server.observe.account import account_of

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span
    from opentelemetry.trace.propagation import tracecontext
else:
    trace = lazy_module("opentelemetry.trace")
    tracecontext = lazy_module("opentelemetry.trace.propagation.tracecontext")

_EXPORT_TIMEOUT_S = 5


class Tracing:
    """ASGI layer inside of `RequestBorder` that makes the spans. A `traceparent` header names the parent span.

    Args:
        app: the application that is traced.
        provider: receives the spans.
    """

    def __init__(self, app: ASGIApp, provider: TracerProvider) -> None:
        self._app = app
        self._tracer = provider.get_tracer("stoker")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._span(scope) as span:

            async def note(message: Message) -> None:
                if message["type"] == "http.response.start":
                    _note_status(span, message["status"])
                await send(message)

            try:
                await self._app(scope, receive, note)
            finally:
                span.set_attributes(_attributes(scope))

    @contextmanager
    def _span(self, scope: Scope) -> Generator[Span]:
        given = {"http.request.method": scope["method"], "url.path": scope["path"], "url.scheme": scope["scheme"]}
        span = self._tracer.start_span(
            f"{scope['method']} {scope['path']}"[:200],
            context=tracecontext.TraceContextTextMapPropagator().extract(dict(Headers(scope=scope))),
            kind=trace.SpanKind.SERVER,
            attributes=given,
        )
        try:
            yield span
        finally:
            span.end()


def open_provider(endpoint: str) -> TracerProvider:
    """A provider that collects spans and sends them in the background; its `shutdown` sends the remaining ones.

    Args:
        endpoint: the collector's URL for OTLP over HTTP, such as `http://127.0.0.1:4318/v1/traces`.

    Raises:
        ConfigError: the packages of the extra `otel` are not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        message = f"`otlp_endpoint` needs the extra `otel`: pip install 'stoker[otel]' ({error})"
        raise ConfigError(message, key="otlp_endpoint") from error
    provider = TracerProvider(resource=Resource.create({"service.name": "stoker"}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_TIMEOUT_S)))
    return provider


def _note_status(span: Span, status: int) -> None:
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(trace.Status(trace.StatusCode.ERROR))


def _attributes(scope: Scope) -> dict[str, Any]:
    account, state = account_of(scope), scope["state"]
    known: dict[str, Any] = {"stoker.request_id": state.get("request_id", "")}
    if state.get("client_left"):
        known["stoker.client_left"] = True
    if account.key_name:
        known["stoker.key"] = account.key_name
    if account.model:
        known["gen_ai.request.model"] = account.model
        known["gen_ai.usage.input_tokens"] = account.prompt_tokens
        known["gen_ai.usage.output_tokens"] = account.completion_tokens
        known["gen_ai.response.finish_reasons"] = list(account.finish_reasons)
        known["stoker.cached_tokens"] = account.cached_tokens
    if account.ttft_s is not None:
        known["stoker.time_to_first_token_s"] = account.ttft_s
    return known
