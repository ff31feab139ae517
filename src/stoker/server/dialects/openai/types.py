"""The JSON types of OpenAI's chat completions and completions, with llama-server's additions, and tables of fields.

In requests `None` means "not given". The tables at the end honor, refuse or ignore each known field.
The type of a chat completion's body is in `request.chat`.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from stoker.server.fields import FieldTable, Ignored, NestedTables, honoured
from stoker.server.request.chat import StreamOptions
from stoker.server.request.fields import Int, StokerOptions, TracedFields
from stoker.server.request.policies import SHARED
from stoker.server.usage import PromptProgress, Timings, TraceReply


class CompletionRequest(TracedFields, frozen=True, kw_only=True):
    """The body of `POST /v1/completions`."""

    prompt: str | list[str | Int | list[Int]] | None = None
    """A text, several texts, token ids, or several lists of token ids."""
    n: Int | None = None
    """Number of answers to each prompt, which is computed only once."""
    stream_options: StreamOptions | None = None
    suffix: str | None = None
    """Text that follows the answer, for models that can fill in the middle."""
    echo: bool | None = None
    """True: the answer begins with the prompt; with `logprobs`, log-probabilities of the prompt are included."""
    best_of: Int | None = None
    """Number of answers that are computed, of which the `n` with the highest mean log-probability are returned."""
    logprobs: Int | None = None


class ControlRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions/control`."""

    id: str
    """Id of the reply, as in its chunks."""
    action: str
    """`reasoning_end`: the reasoning ends now, and the answer begins."""
    model: str | None = None


# Replies


class ControlReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    success: bool
    message: str | None = None
    """The reason if nothing was done."""


class ReplyHead(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that are the same in every reply, and in every chunk of a stream."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    audio_tokens: int | UnsetType = UNSET
    """Number of tokens of recordings; present if the prompt has recordings."""
    image_tokens: int | UnsetType = UNSET
    """Number of tokens of images; present if the prompt has images."""


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class UsageReply(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    prob: float | UnsetType = UNSET
    """The log-probability as a probability, as in llama-server; present if `post_sampling_probs` is given."""


class ChatLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]
    prob: float | UnsetType = UNSET
    top_probs: list[TopLogprob] | UnsetType = UNSET


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[ChatLogprob]
    refusal: None = None


class FunctionDelta(msgspec.Struct, frozen=True):
    """The name of a function on the first delta of a call, then pieces of its arguments."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class CustomDelta(msgspec.Struct, frozen=True):
    """The name of a custom tool on the first delta of a call, then pieces of its text."""

    name: str | UnsetType = UNSET
    input: str = ""


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one chunk adds to one tool call."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomDelta | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    """The text of the model's reasoning."""
    reasoning: str | UnsetType = UNSET
    """The model's reasoning, if the setting `reasoning_field` names this field."""
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What one chunk adds to one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET
    """The stop string or stop token id that ended the answer (an addition of vLLM)."""


class CalledFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str
    """Arguments as JSON, as the model wrote them."""


class CalledCustom(msgspec.Struct, frozen=True):
    name: str
    input: str
    """The text that the tool gets."""


class ToolCallReply(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a function or of a custom tool that the client runs."""

    id: str
    type: str
    """`function` or `custom`, which is also the name of the field that describes the call."""
    function: CalledFunction | UnsetType = UNSET
    custom: CalledCustom | UnsetType = UNSET


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    content: str | None
    """Text of the answer; None if the answer consists only of tool calls."""
    reasoning_content: str | UnsetType = UNSET
    """The text of the model's reasoning."""
    reasoning: str | UnsetType = UNSET
    """The model's reasoning, if the setting `reasoning_field` names this field."""
    tool_calls: list[ToolCallReply] | UnsetType = UNSET
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | UnsetType = UNSET


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Four lists with one item per token. `text_offset` is the position in the text, in characters.

    The log-probability is null only for the first token of an echoed prompt.
    """

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A whole choice, or the part of it in one chunk, which has the same shape."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType = UNSET


class Reply(ReplyHead, frozen=True, kw_only=True):
    """A whole reply without streaming. Subclasses define the type of its choices."""

    usage: UsageReply
    timings: Timings


class ChatCompletion(Reply, frozen=True, kw_only=True):
    choices: list[ChatChoice]


class Completion(Reply, frozen=True, kw_only=True):
    choices: list[CompletionChoice]


class ChatCompletionChunk(ReplyHead, frozen=True, kw_only=True):
    """One event of a stream of a chat completion."""

    choices: list[ChatChunkChoice]
    usage: UsageReply | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET
    stoker: TraceReply | UnsetType = UNSET


class CompletionChunk(ReplyHead, frozen=True, kw_only=True):
    """One event of a stream of a completion."""

    choices: list[CompletionChoice]
    usage: UsageReply | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET
    stoker: TraceReply | UnsetType = UNSET


STREAM_OPTIONS: FieldTable = honoured(StreamOptions, {"include_obfuscation": Ignored("events are never padded")})
STREAM_NESTED: NestedTables = {"stream_options": STREAM_OPTIONS, "stoker": honoured(StokerOptions)}

COMPLETION_FIELDS: FieldTable = honoured(CompletionRequest, SHARED)
CONTROL_FIELDS: FieldTable = honoured(ControlRequest)
