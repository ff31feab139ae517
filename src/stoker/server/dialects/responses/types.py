"""The JSON types of OpenAI's responses, and tables of their fields.

In requests `None` means "not given". The tables at the end honor, refuse or ignore each known field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from stoker.server.dialects.responses.client_tool_types import ClientCall
from stoker.server.dialects.responses.reasoning_types import Compaction, OutputReasoning, SummaryText
from stoker.server.fields import FieldTable, Ignored, NestedTables, Refused, honoured, ignored
from stoker.server.request.fields import GenerationFields, Int
from stoker.server.request.policies import NOTHING_GENERATED, SHARED


class Reasoning(msgspec.Struct, frozen=True, kw_only=True):
    effort: str | None = None
    """Given to the chat template as `reasoning_effort`."""
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    """Unless it is `none`: the item `reasoning` has the whole reasoning as `summary` instead of `content`, because many
    clients show only summaries."""
    generate_summary: Literal["auto", "concise", "detailed", "none"] | None = None
    """Older name of `summary`."""

    @property
    def wanted_summary(self) -> str | None:
        """The kind of summary that the request asks for; None = none."""
        wanted = self.summary or self.generate_summary
        return None if wanted == "none" else wanted


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Constraints on the text of the answer."""

    format: dict[str, Any] | None = None
    """`{"type": "json_schema", "schema": …}`, `{"type": "json_object"}` or `{"type": "text"}`."""


class ContextManagement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the server compacts the conversation before it answers."""

    type: Literal["compaction"]
    compact_threshold: Annotated[int, Meta(ge=1)] | None = None
    """Number of tokens of the prompt above which the conversation is compacted; by default three quarters of the
    context."""


class ResponsesRequest(GenerationFields, frozen=True, kw_only=True):
    """The body of `POST /v1/responses`."""

    input: str | list[dict[str, Any]] | None = None
    """A text, or messages and other items."""
    instructions: str | None = None
    """System prompt; it is not stored for the next turn."""
    previous_response_id: str | None = None
    """Id of a stored response to continue: its input and output precede this input."""
    conversation: str | dict[str, Any] | None = None
    """Id of a stored conversation, or an object with the id: its items precede this input, and input and output are
    added to it."""
    store: bool | None = None
    """False: the response cannot be fetched or continued."""
    background: bool | None = None
    """True: the response is computed in the background, even if the client disconnects. The reply comes at once, to be
    fetched later; with `stream`, the stream can be read again."""
    metadata: dict[str, str] | None = None
    """Texts that are stored with the response."""
    include: list[str] | None = None
    """`message.output_text.logprobs` for log-probabilities; `reasoning.encrypted_content` for the reasoning as one
    opaque text, which a client may send back instead. Other values concern features that do not exist here."""
    top_logprobs: Int | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    """Functions that the model may call, each with a name, a description and a JSON schema of its parameters; custom
    tools, which take a text; and the client tools `shell`, `local_shell` and `apply_patch`."""
    tool_choice: str | dict[str, Any] | None = None
    """`auto`, `required`, `none`, one tool, or `allowed_tools`."""
    parallel_tool_calls: bool | None = None
    """False: a response has at most one call."""
    context_management: list[ContextManagement] | None = None
    """A list of one entry: a conversation that is too long is compacted before the answer."""


class ResponsePromptRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a response's body that decide its prompt."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    """Functions that the model may call, each with a name, a description and a JSON schema of its parameters; custom
    tools, which take a text; and the client tools `shell`, `local_shell` and `apply_patch`."""
    tool_choice: str | dict[str, Any] | None = None
    """`auto`, `required`, `none`, one tool, or `allowed_tools`."""


# Replies


class ResponseTopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class ResponseLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ResponseTopLogprob]


class OutputText(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    annotations: list[Any] = []
    logprobs: list[ResponseLogprob] = []
    type: str = "output_text"


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    id: str
    status: str
    """`in_progress`, `completed` or `incomplete`."""
    content: list[OutputText]
    role: str = "assistant"


class OutputCall(msgspec.Struct, frozen=True, kw_only=True, tag="function_call"):
    """A call of a function that the client runs."""

    id: str
    call_id: str
    name: str
    arguments: str
    """JSON, as the model wrote it."""
    status: str
    namespace: str | UnsetType = UNSET
    """The tool's namespace, if it has one."""


class OutputCustomCall(msgspec.Struct, frozen=True, kw_only=True, tag="custom_tool_call"):
    """A call of a custom tool that the client runs."""

    id: str
    call_id: str
    name: str
    input: str
    """The text."""
    status: str
    namespace: str | UnsetType = UNSET
    """The tool's namespace, if it has one."""


OutputItem: TypeAlias = OutputReasoning | OutputMessage | OutputCall | OutputCustomCall | ClientCall | Compaction


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: str
    """`max_output_tokens`."""


class ResponseError(msgspec.Struct, frozen=True):
    code: str
    message: str


class InputTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0
    """Always 0, because storing a prefix in the cache costs nothing. Clients expect the field."""
    audio_tokens: int | UnsetType = UNSET
    """Number of tokens of recordings; present if the input has recordings."""
    image_tokens: int | UnsetType = UNSET
    """Number of tokens of images; present if the input has images."""


class OutputTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseTextConfig(msgspec.Struct, frozen=True):
    format: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "text"})


class ResponseReasoning(msgspec.Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


class ConversationReference(msgspec.Struct, frozen=True):
    id: str


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response in its present state, from `queued` to its end."""

    id: str
    created_at: int
    """Unix time in seconds."""
    status: str
    """`queued`, `in_progress`, `completed`, `incomplete`, `failed` or `cancelled`."""
    model: str
    output: list[OutputItem]
    background: bool
    store: bool
    metadata: dict[str, str]
    conversation: ConversationReference | UnsetType = UNSET
    """The conversation that the response belongs to, if any."""
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    reasoning: ResponseReasoning = ResponseReasoning()
    temperature: float | None = None
    text: ResponseTextConfig = msgspec.field(default_factory=ResponseTextConfig)
    top_logprobs: int | None = None
    top_p: float | None = None
    usage: ResponseUsage | None = None
    user: str | None = None
    object: str = "response"
    parallel_tool_calls: bool = True
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[Any] = []
    truncation: str = "disabled"


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    deleted: bool = True
    object: str = "response"


# Events of a stream, with their sequence numbers


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`response.created`, `.queued`, `.in_progress`, `.completed`, `.incomplete` and `.failed`, with the response at
    that time."""

    type: str
    sequence_number: int
    response: Response


class OutputItemEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`response.output_item.added` and `.done`."""

    type: str
    sequence_number: int
    output_index: int
    item: OutputItem


class ContentPartEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`response.content_part.added` and `.done`."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    part: OutputText


class _ItemEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event about one output item."""

    sequence_number: int
    item_id: str
    output_index: int


class TextDeltaEvent(_ItemEvent, frozen=True, kw_only=True):
    """`response.output_text.delta`."""

    content_index: int
    delta: str
    logprobs: list[ResponseLogprob]
    type: str = "response.output_text.delta"


class TextDoneEvent(_ItemEvent, frozen=True, kw_only=True):
    """`response.output_text.done`."""

    content_index: int
    text: str
    logprobs: list[ResponseLogprob]
    type: str = "response.output_text.done"


class PieceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`response.reasoning_text.delta`, `.reasoning_summary_text.delta`, `.function_call_arguments.delta`,
    `.custom_tool_call_input.delta` and `.apply_patch_call_operation_diff.delta`."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    delta: str
    content_index: int | UnsetType = UNSET
    summary_index: int | UnsetType = UNSET


class ReasoningDoneEvent(_ItemEvent, frozen=True, kw_only=True):
    """`response.reasoning_text.done`."""

    content_index: int
    text: str
    type: str = "response.reasoning_text.done"


class SummaryPartEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`response.reasoning_summary_part.added` and `.done`."""

    type: str
    sequence_number: int
    item_id: str
    output_index: int
    part: SummaryText
    summary_index: int = 0


class SummaryDoneEvent(_ItemEvent, frozen=True, kw_only=True):
    """`response.reasoning_summary_text.done`."""

    text: str
    summary_index: int = 0
    type: str = "response.reasoning_summary_text.done"


class ArgumentsDoneEvent(_ItemEvent, frozen=True, kw_only=True):
    """`response.function_call_arguments.done`."""

    name: str
    arguments: str
    type: str = "response.function_call_arguments.done"


class InputDoneEvent(_ItemEvent, frozen=True, kw_only=True):
    """`response.custom_tool_call_input.done`."""

    input: str
    type: str = "response.custom_tool_call_input.done"


class ShellCommandEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`response.shell_call_command.added`, `.delta` and `.done`."""

    type: str
    sequence_number: int
    output_index: int
    command_index: int
    command: str | UnsetType = UNSET
    delta: str | UnsetType = UNSET


class DiffDoneEvent(_ItemEvent, frozen=True, kw_only=True):
    """`response.apply_patch_call_operation_diff.done`."""

    diff: str
    type: str = "response.apply_patch_call_operation_diff.done"


class CompactingEvent(_ItemEvent, frozen=True, kw_only=True):
    """`response.compaction.compacting`: the model writes a summary."""

    type: str = "response.compaction.compacting"


Event: TypeAlias = (
    ResponseEvent
    | OutputItemEvent
    | ContentPartEvent
    | TextDeltaEvent
    | TextDoneEvent
    | PieceEvent
    | ReasoningDoneEvent
    | SummaryPartEvent
    | SummaryDoneEvent
    | ArgumentsDoneEvent
    | InputDoneEvent
    | ShellCommandEvent
    | DiffDoneEvent
    | CompactingEvent
)

_OWN: FieldTable = {
    "n": Refused("one response has one answer", (1,)),
    "response_format": Refused("in the responses API, use `text.format`", ({"type": "text"},)),
    "max_tool_calls": Ignored("it counts calls of built-in tools, of which there are none"),
    "prompt": Refused("there are no stored prompt templates"),
    "truncation": Ignored("prompts that are too long are refused, never truncated"),
    "logprobs": Refused('ask for them with `include: ["message.output_text.logprobs"]`', (False,)),
    "background_options": Ignored("background requests start as soon as there is room"),
    "image": Ignored("images are refused"),
    "client_metadata": Ignored("nothing is stored"),
    "personality": Ignored("local models have no such setting"),
    "access_programs": Ignored("there are no such programs"),
    "stream_options": Ignored("events are never padded, and the last one always has the token counts"),
}

RESPONSES_NESTED: NestedTables = {
    "reasoning": honoured(Reasoning),
    "text": honoured(
        TextOptions,
        {
            "verbosity": Ignored("local models have no such setting"),
        },
    ),
}
RESPONSES_FIELDS: FieldTable = honoured(ResponsesRequest, SHARED, _OWN)
COMPACTION_FIELDS: FieldTable = honoured(
    ResponsePromptRequest,
    ignored(ResponsesRequest, "a summary is written with the model's own settings"),
    SHARED,
    _OWN,
    {"stream": Refused("the summary comes as one reply", (False,))},
)
RESPONSE_PROMPT_FIELDS: FieldTable = honoured(
    ResponsePromptRequest, ignored(ResponsesRequest, NOTHING_GENERATED), SHARED, _OWN
)
