"""The tables that say what becomes of every known field of the native endpoints; they do nothing themselves."""

from __future__ import annotations

from stoker.server.dialects.llamacpp.types import (
    DetokenizeRequest,
    InfillRequest,
    NativeCompletionRequest,
    SlotFileRequest,
    TokenizeRequest,
)
from stoker.server.fields import FieldTable, Ignored, Refused, honoured
from stoker.server.request.policies import SHARED

_OWN: FieldTable = {
    "stream_options": Ignored("the last part of every answer has the numbers"),
    "multimodal_data": Refused("it belongs into `prompt`, beside `prompt_string`", ([],)),
}

NATIVE_COMPLETION_FIELDS: FieldTable = honoured(NativeCompletionRequest, SHARED, _OWN)
INFILL_FIELDS: FieldTable = honoured(InfillRequest, SHARED, _OWN)
TOKENIZE_FIELDS: FieldTable = honoured(TokenizeRequest)
DETOKENIZE_FIELDS: FieldTable = honoured(DetokenizeRequest)
SLOT_FILE_FIELDS: FieldTable = honoured(SlotFileRequest)
