"""The settings of the HTTP server, as one checked value. `stoker.config` reads them from their sources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from stoker.errors import InvalidInput

_DAY_S = 86_400.0
_ORIGIN = r"(\*|null|[a-z][a-z0-9+.-]*://[^/\s,]+)"
_SHAPES: Mapping[str, tuple[re.Pattern[str], str]] = {
    "root_path": (re.compile(r"(/[\w.~-]+)+", re.ASCII), "a path such as /llm, without a slash at its end"),
    "cors_origins": (
        re.compile(rf"\s*{_ORIGIN}(\s*,\s*{_ORIGIN})*\s*"),
        "origins such as https://chat.example.com, without a path",
    ),
    "otlp_endpoint": (re.compile(r"https?://\S+"), "a URL such as http://127.0.0.1:4318/v1/traces"),
}
"""Pattern that a setting must match if it is given, and its description for the error."""
_RANGES: Mapping[str, tuple[float, float]] = {
    "port": (0, 65_535),
    "max_body_bytes": (1, 2**40),
    "max_choices": (1, 65_536),
    "max_stored_responses": (0, 2**31),
    "max_stored_bytes": (0, 2**50),
    "max_thought_bytes": (0, 2**50),
    "stored_response_s": (0, 10_000 * _DAY_S),
    "files_mib": (1, 2**31),
    "session_ttl_s": (1, 365 * _DAY_S),
    "max_connections": (1, 2**20),
    "body_timeout_s": (0.001, _DAY_S),
    "request_timeout_s": (0.001, 365 * _DAY_S),
    "keep_alive_s": (0.001, _DAY_S),
    "write_timeout_s": (0.001, _DAY_S),
    "idle_connection_s": (1, _DAY_S),
    "drain_s": (0, _DAY_S),
}


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Address, security and limits of the HTTP server."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8080
    """Port to listen on; 0 = a free one."""
    unix_socket: str = ""
    """Listen on this Unix domain socket instead of an address."""
    root_path: str = ""
    """Additional path prefix of all endpoints, such as /llm, for a reverse proxy that does not strip it."""
    ui: bool = True
    """Web page at /, with a chat and a view of the engine."""
    ui_store: str = ""
    """Folder for the conversations of the web page, separate for each API key. Default: in the browser only."""
    tls_certificate: str = ""
    """PEM file with the TLS certificate and its chain, for HTTPS; requires `tls_key`."""
    tls_key: str = ""
    """PEM file with the private key of the TLS certificate."""
    api_key: str = ""
    """API key that clients must send; several are comma-separated, and NAME:KEY names a key in metrics and logs. Prefer
    the environment variable STOKER_API_KEY."""
    api_key_file: str = ""
    """File with one API key or NAME:KEY per line; # begins a comment."""
    admin_key: str = ""
    """API key required to load, unload, pull, copy, delete and erase; without one, only programs on this machine may.
    Prefer the environment variable STOKER_ADMIN_KEY."""
    allow_unauthenticated: bool = False
    """Listen on addresses other than this machine's without an API key."""
    cors_origins: str = ""
    """Allowed CORS origins, comma-separated; * = all."""
    cors_credentials: bool = False
    """Allow CORS requests with credentials such as cookies; not with the origin *."""
    allowed_hosts: str = ""
    """Further Host names accepted by a server that listens on this machine only, comma-separated; * = all."""
    strict_models: bool = False
    """Refuse requests that name an unknown model, instead of answering with the served one."""
    strict_fields: bool = False
    """Refuse requests with unknown fields, instead of ignoring them and listing them in the header x-stoker-ignored."""
    volatile_headers: tuple[str, ...] = ()
    """Regular expression for lines to remove from the beginning of system prompts; may be repeated. Lines that change
    with each request, as some agents send, defeat the prefix cache."""
    media_urls: Literal["off", "public"] = "public"
    """Download images, recordings and documents that requests name by URL: from public addresses, or not at all."""
    allowed_media_domains: tuple[str, ...] = ()
    """Domain from which files may be downloaded, including subdomains; may be repeated. Default: all public domains."""
    media_path: str = ""
    """Folder of this machine whose images, recordings and documents any client may name by file:// URLs, with a
    relative or an absolute path; symbolic links below it are not followed. Default: none."""
    max_body_bytes: int = 32 * 2**20
    max_choices: int = 64
    """Maximum number of answers of one HTTP request: its prompts times `n`."""
    max_inputs: int = 2048
    """Maximum number of texts of one request for embeddings or reranking."""
    max_stored_responses: int = 1024
    """Maximum number of stored responses and conversations, which can be fetched or continued; the oldest are deleted
    first."""
    max_stored_bytes: int = 64 * 2**20
    """Maximum total size of what is stored of responses and conversations, in bytes; the oldest are deleted first."""
    max_thought_bytes: int = 16 * 2**20
    """Maximum size of the stored reasoning before tool calls, in bytes; 0 = none. It is inserted if a client does not
    send it back with the results."""
    stored_response_s: float = 86_400.0
    """Time for which a response is stored, and a conversation after its last use, in seconds."""
    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    """Name of the field for the model's reasoning in chat completions."""
    anthropic_thinking: Literal["off", "template"] = "off"
    """Reasoning of Anthropic requests without `thinking`: off, if the chat template can turn it off, or the default of
    the chat template."""
    files_dir: str = ""
    """Directory for /v1/files, /v1/batches and /v1/messages/batches; auto = files in Stoker's cache folder. Default:
    none, because it contains the prompts and answers of batches."""
    files_mib: int = 10_240
    """Maximum size of the files and batches of one API key, in MiB."""
    session_ttl_s: float = 600.0
    """Time after its last request for which the KV cache of a session (session_id) is evicted last, in seconds."""
    max_connections: int = 1024
    """Maximum number of open connections; further ones are refused with status 429."""
    body_timeout_s: float = 60.0
    """Maximum time to receive a request body, in seconds."""
    request_timeout_s: float | None = None
    """Maximum time for one answer, in seconds; also the maximum of a request's own timeout. Default: no limit."""
    keep_alive_s: float = 15.0
    """Time without output after which a stream sends a comment line, so that proxies keep it open, in seconds."""
    write_timeout_s: float = 60.0
    """Time after which a client that reads nothing is disconnected, in seconds."""
    idle_connection_s: int = 65
    """Time for which a connection without a request is kept open, in seconds."""
    drain_s: float = 30.0
    """Maximum time for running requests at shutdown, in seconds."""
    log_format: Literal["text", "json"] = "text"
    """Format of the access log, which is written at log level info and contains no prompts."""
    otlp_endpoint: str = ""
    """URL of an OpenTelemetry collector that receives a span per request (extra otel)."""

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            _check_range(name, getattr(self, name), low, high)
        if bool(self.tls_certificate) != bool(self.tls_key):
            given = "tls_certificate" if self.tls_certificate else "tls_key"
            raise InvalidInput("`tls_certificate` and `tls_key` are needed together", parameter=given)
        if self.cors_credentials and "*" in listed(self.cors_origins):
            message = "`cors_credentials` with `cors_origins` = *: any page could act as its visitor; name the pages"
            raise InvalidInput(message, parameter="cors_credentials")
        for name, (shape, wanted) in _SHAPES.items():
            value = getattr(self, name)
            if value and not shape.fullmatch(value):
                raise InvalidInput(f"`{name}` must be {wanted}, not {value!r}", parameter=name)


def listed(text: str) -> tuple[str, ...]:
    """The items of a comma-separated setting."""
    return tuple(part for part in map(str.strip, text.split(",")) if part)


def _check_range(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise InvalidInput(f"`{name}` must be between {low:g} and {high:g}, not {value:g}", parameter=name)
