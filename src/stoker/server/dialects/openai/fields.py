"""The tables that say what becomes of the fields of OpenAI's request bodies, except a chat's."""

from __future__ import annotations

from stoker.server.dialects.openai.types import CompletionRequest, ControlRequest
from stoker.server.fields import FieldTable, Ignored, NestedTables, honoured
from stoker.server.request.chat import StreamOptions
from stoker.server.request.policies import SHARED

STREAM_OPTIONS: FieldTable = honoured(StreamOptions, {"include_obfuscation": Ignored("events are never padded")})
STREAM_NESTED: NestedTables = {"stream_options": STREAM_OPTIONS}

COMPLETION_FIELDS: FieldTable = honoured(CompletionRequest, SHARED)
CONTROL_FIELDS: FieldTable = honoured(ControlRequest)
