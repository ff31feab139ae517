"""The table of formats in which models reason and call tools. A new format is a new row here.

The row of a model is not chosen by the model's name: `probe` takes the row that parses what the model's own chat
template writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

from stoker.errors import ConfigError
from stoker.text.chat_formats.shapes import AnyShape, BareCalls, JSONCalls, NamedCalls, PythonCalls, TaggedCalls

Span: TypeAlias = tuple[str, str]
"""The markers at the beginning and the end of something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """The format in which a family of models writes reasoning, content and tool calls."""

    name: str
    calls: AnyShape | None
    """None = the format has no tool calls."""
    thinking: Span = ("<think>", "</think>")
    wrappers: tuple[str, ...] = ()
    """Markers around content, which are removed from it."""
    calls_end_thinking: bool = False
    """A call that begins inside the reasoning ends the reasoning."""
    max_calls: int | None = None
    """Maximum number of calls in one answer; None = no limit."""
    id_form: str = "any"
    """Form of a call's id in the template: `any`, `alnum9` (9 letters or digits), `kimi` (`functions.name:index`)."""
    hints: tuple[str, ...] = ()
    """Strings that identify the format in the source of a template that does not write calls."""

    @property
    def call_markers(self) -> tuple[str, ...]:
        """The markers that begin calls, or the section of all calls; empty markers are left out."""
        if self.calls is None:
            return ()
        return tuple(marker for marker in (getattr(self.calls, "section", ("",))[0], *self.calls.starts) if marker)


_CHANNEL_END = (
    "<|end|>",
    "<|start|>assistant",
    "<|channel|>final<|message|>",
    "<|channel|>commentary<|message|>",
    "<|channel|>commentary to=assistant",
    "<|return|>",
)

HERMES = Format(
    name="hermes",
    calls=JSONCalls(start="<tool_call>", end="</tool_call>"),
    wrappers=("<response>", "</response>"),
    hints=("<tool_call>",),
)
_GLM = TaggedCalls(
    start="<tool_call>",
    key_start="<arg_key>",
    key_end="</arg_key>",
    value_start="<arg_value>",
    value_end="</arg_value>",
    end="</tool_call>",
)
_QWEN_XML = TaggedCalls(
    start="<function=",
    section=("<tool_call>", "</tool_call>"),
    name_end=">",
    key_start="<parameter=",
    key_end=">",
    value_end="</parameter>",
    end="</function>",
    trims_newline=True,
)
_DSML = TaggedCalls(
    start='<｜DSML｜invoke name="',
    section=("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
    name_end='">',
    key_start='<｜DSML｜parameter name="',
    key_end='"',
    attributes_end=">",
    writes_attributes=(' string="true"', ' string="false"'),
    value_end="</｜DSML｜parameter>",
    end="</｜DSML｜invoke>",
)

FORMATS: tuple[Format, ...] = (
    # JSON between markers
    HERMES,
    Format(
        name="tool_calls",
        calls=JSONCalls(start="<tool_calls>", end="</tool_calls>"),
        wrappers=("<answer>", "</answer>", "[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"),
    ),
    Format(
        name="apriel",
        calls=JSONCalls(start="<tool_calls>", end="</tool_calls>"),
        thinking=("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
        wrappers=("[END FINAL RESPONSE]",),
    ),
    Format(
        name="granite3",
        calls=JSONCalls(start="<|tool_call|>", others=("<tool_call>",)),
        wrappers=("<response>", "</response>"),
        hints=("<|tool_call|>",),
    ),
    Format(name="phi4", calls=JSONCalls(start="<|tool_call|>", end="<|/tool_call|>", others=("functools",))),
    Format(
        name="mistral3",
        calls=JSONCalls(start="[TOOL_CALLS]", id_key="id"),
        thinking=("[THINK]", "[/THINK]"),
        id_form="alnum9",
    ),
    Format(name="llama3", calls=JSONCalls(others=("<|python_tag|>",), arguments_key="parameters"), max_calls=1),
    Format(
        name="cohere",
        calls=JSONCalls(
            start="<|START_ACTION|>",
            end="<|END_ACTION|>",
            name_key="tool_name",
            arguments_key="parameters",
            id_key="tool_call_id",
        ),
        thinking=("<|START_THINKING|>", "<|END_THINKING|>"),
        wrappers=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    Format(
        name="command_r",
        calls=JSONCalls(
            start="Action: ```json", others=("Action:",), end="```", name_key="tool_name", arguments_key="parameters"
        ),
    ),
    Format(
        name="apertus",
        calls=JSONCalls(start="<|tools_prefix|>", end="<|tools_suffix|>", name_is_key=True),
        thinking=("<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    Format(name="nemotron2", calls=JSONCalls(start="<TOOLCALL>", end="</TOOLCALL>")),
    Format(name="gigachat31", calls=JSONCalls(start="<|function_call|>"), max_calls=1),
    Format(
        name="gigachat3",
        calls=JSONCalls(start="function call<|role_sep|>"),
        wrappers=("<|message_sep|>", "assistant<|role_sep|>"),
        max_calls=1,
    ),
    Format(
        name="internlm",
        calls=JSONCalls(start="<|action_start|><|plugin|>", end="<|action_end|>", arguments_key="parameters"),
        max_calls=1,
    ),
    Format(
        name="longcat",
        calls=JSONCalls(start="<longcat_tool_call>", end="</longcat_tool_call>"),
        thinking=("<longcat_think>", "</longcat_think>"),
    ),
    Format(name="firefunction", calls=JSONCalls(start=" functools", others=("functools",))),
    # The name outside of the JSON
    Format(
        name="mistral11",
        calls=NamedCalls(start="[TOOL_CALLS]", before_arguments="[ARGS]", writes_after=("", "[CALL_ID]{id}")),
        thinking=("[THINK]", "[/THINK]"),
        id_form="alnum9",
    ),
    Format(
        name="deepseek_r1",
        calls=NamedCalls(
            start="<｜tool▁call▁begin｜>",
            section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
            writes_before="function",
            before_name="<｜tool▁sep｜>",
            before_arguments="```json",
            fence=("", "```"),
            end="<｜tool▁call▁end｜>",
        ),
    ),
    Format(
        name="deepseek_v31",
        calls=NamedCalls(
            start="<｜tool▁call▁begin｜>",
            section=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
            before_arguments="<｜tool▁sep｜>",
            end="<｜tool▁call▁end｜>",
        ),
    ),
    Format(name="functionary31", calls=NamedCalls(start="<function=", before_arguments=">", end="</function>")),
    Format(name="functionary32", calls=NamedCalls(start=">>>", before_arguments="\n"), wrappers=(">>>all\n",)),
    Format(
        name="kimi2",
        calls=NamedCalls(
            start="<|tool_call_begin|>",
            section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            before_arguments="<|tool_call_argument_begin|>",
            end="<|tool_call_end|>",
            name_pattern=r"\s*(?:functions\.)?([\w.-]+?)(?::\d+)?\s*$",
            writes_before="functions.",
            writes_after=(":{number}",),
        ),
        calls_end_thinking=True,
        id_form="kimi",
    ),
    Format(
        name="harmony",
        calls=NamedCalls(
            start=" to=functions.",
            others=("<|channel|>commentary to=functions.", "<|channel|>analysis to=functions."),
            writes_after=("", " <|constrain|>json", "<|channel|>commentary json", "<|channel|>commentary"),
            before_arguments="<|message|>",
            end="<|call|>",
        ),
        thinking=("<|channel|>analysis<|message|>", "<|end|>"),
        wrappers=_CHANNEL_END,
        max_calls=1,
    ),
    Format(
        name="solar",
        calls=NamedCalls(
            start="<|tool_call:begin|>",
            section=("<|tool_calls|>", "<|calls|>"),
            writes_before="{id}",
            before_name="<|tool_call:name|>",
            before_arguments="<|tool_call:args|>",
            end="<|tool_call:end|>",
        ),
        thinking=("<|think|>", "<|end|>"),
        wrappers=("<|begin|>assistant", "<|content|>", "<|end|>"),
    ),
    Format(name="glm4", calls=NamedCalls(start="<|assistant|>", before_arguments="\n", end="<|observation|>")),
    # Each argument between markers
    Format(name="qwen_xml", calls=_QWEN_XML, calls_end_thinking=True),
    Format(
        name="seed",
        calls=replace(_QWEN_XML, section=("<seed:tool_call>", "</seed:tool_call>"), trims_newline=False),
        thinking=("<seed:think>", "</seed:think>"),
    ),
    Format(name="glm45", calls=_GLM, calls_end_thinking=True),
    Format(
        name="hunyuan3",
        calls=TaggedCalls(
            start="<tool_call:opensource>",
            section=("<tool_calls:opensource>", "</tool_calls:opensource>"),
            name_end="<tool_sep:opensource>",
            key_start="<arg_key:opensource>",
            key_end="</arg_key:opensource>",
            value_start="<arg_value:opensource>",
            value_end="</arg_value:opensource>",
            end="</tool_call:opensource>",
        ),
        thinking=("<think:opensource>", "</think:opensource>"),
    ),
    Format(
        name="minimax2",
        calls=TaggedCalls(
            start='<invoke name="',
            section=("<minimax:tool_call>", "</minimax:tool_call>"),
            name_end='">',
            key_start='<parameter name="',
            key_end='">',
            value_end="</parameter>",
            end="</invoke>",
        ),
    ),
    Format(name="dsml", calls=_DSML, calls_end_thinking=True),
    Format(
        name="dsml4",
        calls=replace(_DSML, section=("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")),
        calls_end_thinking=True,
    ),
    Format(
        name="minicpm5",
        calls=TaggedCalls(
            start='<function name="',
            name_end='">',
            key_start='<param name="',
            key_end='">',
            value_end="</param>",
            quotes=("<![CDATA[", "]]>"),
            end="</function>",
        ),
    ),
    Format(
        name="kimi3",
        calls=TaggedCalls(
            start='<|open|>call tool="',
            section=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
            name_end='"',
            head_end="<|sep|>",
            writes_head=' index="{number}"',
            key_start='<|open|>argument key="',
            key_end='"',
            attributes_end="<|sep|>",
            writes_attributes=(
                ' type="string"',
                *(f' type="{kind}"' for kind in ("number", "integer", "boolean", "object", "array", "null")),
            ),
            value_end="<|close|>argument<|sep|>",
            end="<|close|>call<|sep|>",
        ),
        thinking=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        wrappers=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
    Format(
        name="muse",
        calls=TaggedCalls(
            start='<atem:invoke name="',
            section=("<atem:function_calls>", "</atem:function_calls>"),
            name_end='">',
            key_start='<atem:parameter name="',
            key_end='">',
            value_end="</atem:parameter>",
            end="</atem:invoke>",
        ),
        thinking=(" to=self<|message|>", "<|eom|>"),
        wrappers=("<|start|>assistant", " to=user<|message|>", "<|eom|>"),
    ),
    # Python's calls
    Format(
        name="lfm2",
        calls=PythonCalls(start="<|tool_call_start|>", end="<|tool_call_end|>"),
        hints=("<|tool_call_start|>", "<|tool_list_start|>", "List of tools: ["),
    ),
    Format(name="olmo3", calls=PythonCalls(start="<function_calls>", end="</function_calls>")),
    Format(name="pythonic", calls=PythonCalls(others=("<|python_start|>",))),
    # Keys and words without quotes
    Format(
        name="gemma4",
        calls=BareCalls(start="<|tool_call>call:", quote='<|"|>', end="<tool_call|>"),
        thinking=("<|channel>thought", "<channel|>"),
    ),
    Format(
        name="function_gemma",
        calls=BareCalls(start="<start_function_call>call:", quote="<escape>", end="<end_function_call>"),
    ),
)

GENERIC = Format(name="generic", calls=JSONCalls(wrapper="tool_calls"))
"""The format for templates without tools: the system prompt instructs the model to write it."""

CHATML_END = "<|im_end|>"
"""The end of a message in ChatML, which is used for a model without a chat template."""

PLAIN = Format(name="plain", calls=None)
"""The format without tool calls: only reasoning is parsed."""

MORE_THINKING: tuple[Span, ...] = (("<mm:think>", "</mm:think>"),)
"""Further markers of reasoning, of templates whose calls no row parses."""


NO_TOOLS = "none"
"""Name in the settings for a format without tool calls."""


def check_tool_format(name: str) -> None:
    """Checks the name of a format in the settings; empty = detected from the chat template.

    Raises:
        ConfigError: there is no such format.
    """
    known = [*(row.name for row in (*FORMATS, GENERIC)), NO_TOOLS]
    if name and name not in known:
        message = f"there is no tool format {name!r}; there are {', '.join(known)}"
        raise ConfigError(message, key="tool_format")


_TOKEN = re.compile(r"<\|?[^<>\s]+>|\[/?[A-Z_]+\]")
"""Text that usually is a single control token, in vocabularies that have it."""


def marker_tokens(row: Format) -> frozenset[str]:
    """The parts of a format's markers that may be single tokens of the vocabulary."""
    texts = [*row.thinking, *row.wrappers, *(() if row.calls is None else _texts(row.calls))]
    return frozenset(token for text in texts for token in _TOKEN.findall(text))


def _texts(shape: AnyShape) -> Iterator[str]:
    for each in fields(shape):
        value: object = getattr(shape, each.name)
        yield from (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ()


ALL_MARKER_TOKENS = frozenset(token for row in FORMATS for token in marker_tokens(row))
"""The marker tokens of all formats."""
