"""Renders a model's own chat template: from messages to the text of a prompt. Independent of tokens.

Templates are untrusted, so their work is limited.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cached_property
from itertools import chain, zip_longest

import jinja2

from stoker.errors import InvalidInput, TemplateError
from stoker.text.messages import ArgumentForm, Json, Message, is_image, message_to_dict, plain_json
from stoker.text.template_budget import MAX_CPU_S, MAX_WORK, WorkLimitExceeded, limited, take_time
from stoker.text.template_sandbox import RaisedByTemplate, TemplateSandbox

CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""ChatML, the template for a model that has none."""

MAX_SOURCE_CHARS = 1 << 17
MAX_PROMPT_CHARS = 1 << 24

_PROBE_SHARE = 0.05
"""Share of the limits of a prompt that each probe of a template may use. A probe is a small conversation."""
_PROBE_ARGUMENTS: Json = {"probe-key": 1}
_PROBE_TEXT = '{"probe-key": 1}'
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    NameError,
    RuntimeError,
    SyntaxError,
    MemoryError,
)
"""Errors that a compiled Jinja template can raise if it is wrong, or does not fit the messages."""


class ChatTemplate:
    """Renders conversations as Hugging Face transformers does. Safe to use from several threads.

    Templates differ in the message formats that they support. What a template supports is found out by rendering small
    conversations, not by guessing from its source. Nothing is added to its output: no generation prompt, no thinking
    tag.

    Args:
        source: the Jinja source. None = ChatML.
        bos_token: text of the beginning-of-sequence token, a variable of the template.
        eos_token: text of the end-of-sequence token, a variable of the template.
        image_text: the text that the template writes for an image. Empty = images are passed to the template as text
            parts with their markers.
        max_work: maximum work for one prompt; a unit is one operation or 16 characters. In addition, CPU time is
            limited to 5 s and the prompt to 16 Mi characters.

    Raises:
        TemplateError: the source does not compile.
    """

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str = "",
        eos_token: str = "",
        image_text: str = "",
        max_work: int = MAX_WORK,
    ) -> None:
        self.source = CHATML if source is None else source
        self._tokens: dict[str, Json] = {"bos_token": bos_token, "eos_token": eos_token}
        self._image_text = image_text
        self._max_work = max_work
        self._knows_developer = "developer" in self.source
        if len(self.source) > MAX_SOURCE_CHARS:
            raise TemplateError(f"the chat template is longer than {MAX_SOURCE_CHARS} characters")
        take_time()
        with limited(), _template_errors():
            self._template = TemplateSandbox().load(self.source)

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        **variables: object,
    ) -> str:
        """The text of the prompt, including special tokens.

        A `developer` message becomes a `system` message if the template does not mention that role. Content in several
        parts is passed as a list if the template supports lists, else as one string with newlines between the parts.
        Missing content is passed as None, or as an empty string if the template does not support None.

        Args:
            messages: the conversation.
            add_generation_prompt: end the prompt with the header of the assistant's answer.
            continue_final_message: the last message is the beginning of the answer, so the prompt ends with its text
                and has no generation prompt.
            tools: JSON schemas of the tools, in OpenAI's format.
            variables: other variables of the template, such as `enable_thinking`; JSON values.

        Raises:
            TemplateError: the template raised an error, failed, or did too much work.
            InvalidInput: a variable is not JSON or is named `messages`, or there is no text to continue.
        """
        values = self._tokens | _checked(variables)
        values |= _tool_variables(self._no_tools if tools is None else tools)
        if "datetime" in self.source:
            values.setdefault("datetime", datetime.now().strftime("%b %d %Y"))
        values["add_generation_prompt"] = add_generation_prompt and not continue_final_message
        markers = self._own_images(messages)
        if markers:
            with suppress(TemplateError):  # the template does not support images
                pieces = self._written(messages, values, continue_final_message, images=True).split(self._image_text)
                if len(pieces) == len(markers) + 1:
                    return "".join(chain.from_iterable(zip_longest(pieces, markers, fillvalue="")))
        return self._written(messages, values, continue_final_message)

    def _own_images(self, messages: Sequence[Message]) -> list[str]:
        """Markers of the images that the template writes itself, in order; empty if images are passed as text."""
        contents = [message.content for message in messages if isinstance(message.content, tuple)]
        images = [part for content in contents for part in content if is_image(part)]
        return [image.text for image in images] if self._image_text and images and self._reads_parts else []

    def _written(
        self, messages: Sequence[Message], values: Mapping[str, Json], is_continued: bool, *, images: bool = False
    ) -> str:
        dicts: Json = [self._as_dict(message, images=images) for message in messages]
        values = {**values, "messages": dicts}
        if not is_continued:
            return self._run(values)
        final = _tag_final_message(dicts)
        return _cut_at_tag(self._run(values), final)

    def _as_dict(self, message: Message, *, images: bool) -> dict[str, Json]:
        has_parts = isinstance(message.content, tuple) and self._reads_parts
        form = self._argument_form if message.tool_calls else "either"
        values = message_to_dict(message, parts=has_parts or self._needs_parts, images=images, arguments=form)
        if message.role == "developer" and not self._knows_developer:
            values["role"] = "system"
        if message.tool_calls and not message.content:
            values["content"] = self._beside_calls
        elif message.content is None and not self._reads_null:
            values["content"] = ""
        return values

    def _run(self, values: Mapping[str, Json], share: float = 1.0) -> str:
        """Runs the template. `share` is the share of the limits of work and CPU time of a prompt that it may use."""
        pieces: list[str] = []
        num_chars = 0
        with limited(work=int(share * self._max_work), cpu_s=share * MAX_CPU_S), _template_errors():
            for piece in self._template.generate(values):
                num_chars += len(piece)
                if num_chars > MAX_PROMPT_CHARS:
                    raise WorkLimitExceeded(f"it writes more than {MAX_PROMPT_CHARS} characters")
                pieces.append(piece)
            text = "".join(pieces)
            text.encode()  # raises an error for a lone surrogate, which an escape in the template can produce
        return text

    @cached_property
    def _no_tools(self) -> list[Mapping[str, object]] | None:
        """The value of `tools` when there are none: None, or an empty list if the template fails with None."""
        question: list[Json] = [{"role": "user", "content": "hello"}]
        values: dict[str, Json] = {**self._tokens, "messages": question, "add_generation_prompt": False}
        choices: list[list[Mapping[str, object]] | None] = [None, []]
        for given in choices:
            try:
                self._run(values | _tool_variables(given), _PROBE_SHARE)
            except TemplateError:
                continue
            return given
        return None

    @cached_property
    def _reads_parts(self) -> bool:
        """Whether the template supports content in parts: it writes their text, not the text of a Python list."""
        prompt = self._probe([{"type": "text", "text": "first-part"}, {"type": "text", "text": "last-part"}])
        return "first-part" in prompt and "last-part" in prompt and "text'" not in prompt and 'text"' not in prompt

    @cached_property
    def _needs_parts(self) -> bool:
        """Whether the template supports only content in parts: it does not write content that is a string."""
        return "only-part" not in self._probe("only-part") and self._reads_parts

    @cached_property
    def _reads_null(self) -> bool:
        """Whether the template supports content that is None: it writes no `None`, and raises no error due to it."""
        prompt, empty = self._probe(None), self._probe("")
        return "None" not in prompt and bool(prompt or not empty)

    @cached_property
    def _beside_calls(self) -> Json:
        """The empty content, None or "", for messages with tool calls: the one with which the template writes calls."""
        arguments = _PROBE_TEXT if self._argument_form == "text" else _PROBE_ARGUMENTS
        return "" if _names_probe(self._probe_call("", arguments)) else None

    @cached_property
    def _argument_form(self) -> ArgumentForm:
        """The form of a tool call's arguments, JSON text or an object, that the template supports."""
        if self._writes_arguments(_PROBE_ARGUMENTS):
            return "either" if self._writes_arguments("probe-key, cut off") else "object"
        return "text" if self._writes_arguments(_PROBE_TEXT) else "either"

    def _writes_arguments(self, arguments: Json) -> bool:
        contents: tuple[Json, ...] = ("", None)
        return any(_names_probe(self._probe_call(content, arguments)) for content in contents)

    def _probe_call(self, content: Json, arguments: Json) -> str:
        call: Json = {"id": "call00000", "type": "function", "function": {"name": "probe", "arguments": arguments}}
        return self._probe(content, {"tool_calls": [call]})

    def _probe(self, content: Json, fields: Mapping[str, Json] | None = None) -> str:
        """The prompt of a small conversation with this content; empty if the template refuses it."""
        messages: list[Json] = [
            {"role": "user", "content": content or "hello"},
            {"role": "assistant", "content": content, **(fields or {})},
            *([] if fields else [{"role": "user", "content": content or "hello"}]),
        ]
        try:
            values = {**self._tokens, "messages": messages, "add_generation_prompt": False}
            return self._run(values | _tool_variables(self._no_tools), _PROBE_SHARE)
        except TemplateError:
            return ""


@contextmanager
def _template_errors() -> Generator[None]:
    try:
        yield
    except RaisedByTemplate as error:
        raise TemplateError(f"the chat template refused the messages: {error}") from error
    except jinja2.TemplateSyntaxError as error:
        raise TemplateError(f"the chat template is not valid, line {error.lineno}: {error.message}") from error
    except WorkLimitExceeded as error:
        raise TemplateError(f"the chat template was stopped: {error}") from error
    except RecursionError as error:
        raise TemplateError("the chat template was stopped: it is nested too deeply") from error
    except _TEMPLATE_FAULTS as error:
        raise TemplateError(f"the chat template failed: {type(error).__name__}: {error}") from error


def _names_probe(prompt: str) -> bool:
    """Whether the prompt has the arguments of a probe's tool call, and not as the text of a Python dict."""
    return "probe-key" in prompt and "{'probe-key'" not in prompt


def _tool_variables(tools: Sequence[Mapping[str, object]] | None) -> dict[str, Json]:
    """The definitions of tools, under all variable names that templates use."""
    if tools is None:
        return {"tools": None, "functions": ""}
    listed = plain_json(tools, "tools")
    return {"tools": listed, "xml_tools": listed, "functions": json.dumps(listed, ensure_ascii=False)}


def _checked(variables: Mapping[str, object]) -> dict[str, Json]:
    if "messages" in variables:
        raise InvalidInput("`messages` is not a variable that can be set", parameter="messages")
    return {name: plain_json(value, name) for name, value in variables.items()}


def _tag_final_message(messages: Json) -> str:
    """Appends a tag to the text of the last message, in place; returns the text without the tag."""
    holder, key = _text_holder(messages)
    text = holder[key]
    if not isinstance(text, str):
        raise InvalidInput("the last message has no text to continue", parameter="continue_final_message")
    holder[key] = text + _CONTINUE_TAG
    return text


def _text_holder(messages: Json) -> tuple[dict[str, Json], str]:
    """The dict, and its key, that hold the last text of the last message."""
    if not isinstance(messages, list) or not messages:
        raise InvalidInput("there is no message to continue", parameter="continue_final_message")
    final = messages[-1]
    assert isinstance(final, dict)
    content = final.get("content")
    if isinstance(content, list) and content:
        part = content[-1]
        assert isinstance(part, dict)
        return part, "text"
    return final, "content"


def _cut_at_tag(prompt: str, final: str) -> str:
    """The prompt up to the end of the final message, as transformers cuts it.

    If the template trims the message, it also trims the space after the tag. Then the prompt is trimmed, too.
    """
    tag_start = prompt.rfind(_CONTINUE_TAG.strip())
    if tag_start < 0 or final.strip() not in prompt:
        raise TemplateError("the chat template changes or drops the last message, so that it cannot be continued")
    if prompt.startswith(_CONTINUE_TAG, tag_start):
        return prompt[:tag_start]
    return prompt[:tag_start].rstrip()
