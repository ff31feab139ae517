"""The JSON types of llama-server's own endpoints and of Stoker's, and tables of their fields.

In requests `None` means "not given". The tables at the end honor, refuse or ignore each known field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from stoker.chat.capabilities import ToolFormat
from stoker.server.fields import FieldTable, Ignored, Refused, honoured
from stoker.server.request.fields import Int, StreamedFields
from stoker.server.request.policies import SHARED
from stoker.server.usage import PromptProgress, Timings


class NativeRequest(StreamedFields, frozen=True, kw_only=True):
    """Common fields of the endpoints that generate text."""

    n: Int | None = None
    """Number of answers to each prompt, which is computed only once. `n_cmpl` means the same."""
    n_cmpl: Int | None = None
    return_tokens: bool | None = None
    """True: the reply also has the token ids of the answer."""
    response_fields: list[str] | None = None
    """The only fields that the reply shall have, each under the name given here; `timings/prompt_n` names a field of an
    object."""


class PromptObject(msgspec.Struct, frozen=True, kw_only=True):
    """A text with files, one for each marker `<__media__>` in the text."""

    prompt_string: str
    multimodal_data: list[str] | None = None
    """Images and audio in base64, in the order of their markers."""


class NativeCompletionRequest(NativeRequest, frozen=True, kw_only=True):
    """The body of `POST /completion`."""

    prompt: str | PromptObject | list[str | Int | PromptObject | list[Int | str]] | None = None
    """A text, a list of token ids and texts that form one prompt, or a list of prompts."""


class ExtraFile(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    filename: str = "tmp"


class InfillRequest(NativeRequest, frozen=True, kw_only=True):
    """The body of `POST /infill`."""

    input_prefix: str | None = None
    input_suffix: str | None = None
    input_extra: list[ExtraFile] | None = None
    """Further files of the same project, the most relevant one last. If not all fit, the first ones are left out."""
    prompt: str | None = None
    """Beginning of the text to fill in."""


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /tokenize`."""

    model: str | None = None
    content: str | list[str | Int] | None = None
    """A text, or a list of texts and token ids; token ids are returned unchanged."""
    prompt: str | None = None
    """vLLM's name of a text in `content`."""
    add_special: bool | None = None
    """Whether to prepend BOS, if the model uses it. Not given = only with `prompt`."""
    add_special_tokens: bool | None = None
    """vLLM's name of `add_special`."""
    parse_special: bool | None = None
    """Whether the text of a special token becomes that token. Not given = true."""
    with_pieces: bool | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /detokenize`."""

    model: str | None = None
    tokens: list[Int] | None = None


# Replies


class ProbToken(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    token: str
    bytes: list[int]
    logprob: float | UnsetType = UNSET
    prob: float | UnsetType = UNSET
    """Probability after the sampling stages, instead of `logprob`, if `post_sampling_probs` is given."""


class ProbPosition(ProbToken, frozen=True, kw_only=True):
    top_logprobs: list[ProbToken] | UnsetType = UNSET
    top_probs: list[ProbToken] | UnsetType = UNSET
    """Likeliest tokens after the sampling stages, instead of `top_logprobs`, if `post_sampling_probs` is given. There
    are fewer where the stages leave fewer tokens."""


class NativeChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an answer."""

    index: int
    content: str
    tokens: list[int]
    """Token ids of this part; empty unless `return_tokens` is given."""
    stop: bool
    tokens_predicted: int
    tokens_evaluated: int
    """Number of tokens of the prompt."""
    completion_probabilities: list[ProbPosition] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    """Timings so far, on the last part; on every part if `timings_per_token` is given."""
    prompt_progress: PromptProgress | UnsetType = UNSET
    """Progress of the prefill. If it is given, the part adds no text."""


class NativeReply(NativeChunk, frozen=True, kw_only=True):
    """A whole answer, or the last part of one."""

    model: str
    stop_type: str
    """`eos`, `limit` or `word`."""
    stopping_word: str
    """The stop string that ended the answer, if `stop_type` is `word`."""
    has_new_line: bool
    """Whether the text contains a line break."""
    tokens_cached: int
    """Number of prompt tokens that were in the cache."""
    generation_settings: dict[str, Any]
    """The request's own settings and the model's defaults, by the names of the fields of requests."""
    truncated: bool = False
    """Always false, because there is no context shift. Text that `/infill` omits does not count, as in llama-server."""


class TokenPiece(msgspec.Struct, frozen=True):
    id: int
    piece: str | list[int]
    """The token's text, or its bytes if it is not valid UTF-8."""


class TokenizeReply(msgspec.Struct, frozen=True):
    tokens: Sequence[int | TokenPiece]
    count: int
    max_model_len: int


class DetokenizeReply(msgspec.Struct, frozen=True):
    content: str
    prompt: str
    """The same text, under vLLM's name."""


class TokenizerReply(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of vLLM's reply that a client needs to apply the chat template itself."""

    bos_token: str | None
    eos_token: str | None
    chat_template: str | None


class TemplateReply(msgspec.Struct, frozen=True):
    prompt: str


class GenerationSettings(msgspec.Struct, frozen=True):
    n_ctx: int
    """Maximum length of a sequence, in tokens."""
    params: dict[str, Any]
    """Default settings of requests, by the names of their fields."""


class Modalities(msgspec.Struct, frozen=True, kw_only=True):
    vision: bool = False
    audio: bool = False


class TemplateCaps(msgspec.Struct, frozen=True, kw_only=True):
    """Features of the chat template itself."""

    supports_tools: bool
    supports_tool_calls: bool
    supports_parallel_tool_calls: bool


class PropsReply(msgspec.Struct, frozen=True, kw_only=True):
    default_generation_settings: GenerationSettings
    total_slots: int
    """Maximum number of requests that run at the same time."""
    model_path: str
    model_alias: str
    chat_template: str
    bos_token: str
    eos_token: str
    chat_template_caps: TemplateCaps
    capabilities: Sequence[str]
    """Capabilities of the model, by Ollama's names."""
    tool_format: ToolFormat | None
    """Format of the model's tool calls; null = the model has no chat template, or a broken one."""
    modalities: Modalities = Modalities()
    media_marker: str
    """The marker for a file in a `prompt_string`."""
    build_info: str
    devices: list[str]
    """Descriptions of the devices that compute besides the CPU."""


class SlotReply(msgspec.Struct, frozen=True, kw_only=True):
    """One native sequence of the KV pool."""

    id: int
    n_ctx: int
    is_processing: bool
    n_tokens: int
    """Resident tokens of the running request, or of a finished request, whose KV cache is kept for reuse."""
    request_id: str | None
    n_prompt_tokens: int
    n_decoded: int
    replica: int | UnsetType = UNSET
    """The engine that the slot belongs to, if the model has several."""


class SlotFileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /slots/{slot}?action=save` and `restore`."""

    filename: str | None = None
    """Name of a file in the folder of `--slot-save-path`: letters, digits, `_`, `-` and `.`."""


class SaveTimings(msgspec.Struct, frozen=True):
    save_ms: float


class RestoreTimings(msgspec.Struct, frozen=True):
    restore_ms: float


class SavedSlot(msgspec.Struct, frozen=True, kw_only=True):
    id_slot: int
    filename: str
    n_saved: int
    """Number of saved tokens."""
    n_written: int
    """Number of written bytes."""
    timings: SaveTimings


class RestoredSlot(msgspec.Struct, frozen=True, kw_only=True):
    id_slot: int
    filename: str
    n_restored: int
    """Number of restored tokens."""
    n_read: int
    """Number of read bytes."""
    timings: RestoreTimings


class ErasedSlot(msgspec.Struct, frozen=True):
    id_slot: int
    n_erased: int


class CacheEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The prefix cache of one model, in tokens."""

    id: str
    kv_capacity: int
    kv_used: int
    """Tokens of running requests."""
    kv_retained: int
    """Tokens of finished requests, which can be reused or evicted."""
    tiers: dict[str, Any]
    """Content of the cache tiers in memory and on disk, and KV restored from them."""


class CacheReply(msgspec.Struct, frozen=True):
    models: list[CacheEntry]


class ErasedCache(msgspec.Struct, frozen=True):
    n_erased: int


_OWN: FieldTable = {
    "stream_options": Ignored("the last chunk of every answer has the usage"),
    "multimodal_data": Refused("it belongs in `prompt`, next to `prompt_string`", ([],)),
}

NATIVE_COMPLETION_FIELDS: FieldTable = honoured(NativeCompletionRequest, SHARED, _OWN)
INFILL_FIELDS: FieldTable = honoured(InfillRequest, SHARED, _OWN)
TOKENIZE_FIELDS: FieldTable = honoured(
    TokenizeRequest, {"messages": Refused("`/apply-template` renders a conversation; send its text as `prompt`")}
)
DETOKENIZE_FIELDS: FieldTable = honoured(DetokenizeRequest)
SLOT_FILE_FIELDS: FieldTable = honoured(SlotFileRequest)
