"""How messages meet a template: roles, parts, missing content, variables, prefill, errors."""

from __future__ import annotations

import json

import pytest

from stoker.core.media import Media
from stoker.errors import InvalidInput, TemplateError
from stoker.text.chat_template import CHATML, ChatTemplate
from stoker.text.media_parts import MediaPart
from stoker.text.messages import Message, TextPart, messages_from_dicts

USER = (Message(role="user", content="hi"),)
SHOW = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
PARTS_ONLY = "{% for m in messages %}[{% for p in m.content %}<{{ p.text }}>{% endfor %}]{% endfor %}"


def render(source: str | None, *messages: Message, **options: object) -> str:
    return ChatTemplate(source).render(messages or USER, **options)  # pyright: ignore[reportArgumentType]


def test_a_model_without_a_template_gets_chatml() -> None:
    expected = "<|im_start|>user\nhi<|im_end|>\n"
    assert render(None, add_generation_prompt=False) == expected
    assert render(None) == expected + "<|im_start|>assistant\n"
    assert ChatTemplate(None).source == CHATML


@pytest.mark.parametrize(
    ("form", "written"),
    [
        ("{{ arguments }}", {'{"k": "é"}': '{"k": "é"}', '{"k": ': '{"k": ', "": "{}", "[1]": "[1]"}),
        ("{{ arguments | tojson }}", {'{"k": "é"}': '{"k": "é"}', '{"k": ': '"{\\"k\\": "', "": "{}"}),
        ("{{ '' + arguments }}", {'{"k": "é"}': '{"k": "é"}', '{"k": ': '{"k": ', "": "{}"}),
        (
            "{% for key, value in arguments | items %}<{{ key }}={{ value }}>{% endfor %}",
            {'{"k": "é"}': "<k=é>", '{"k": ': '<arguments={"k": >', "": "", "[1]": "<arguments=[1]>", "null": ""},
        ),
    ],
)
def test_arguments_that_are_no_object_are_never_an_error(form: str, written: dict[str, str]) -> None:
    """Clients send nothing for a call without arguments, and what there is of a call that was cut off."""
    calls = "{% for call in m.tool_calls %}{% set arguments = call.function.arguments %}" + form + "{% endfor %}"
    template = ChatTemplate("{% for m in messages %}" + calls + "{% endfor %}")
    for arguments, text in written.items():
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        (message,) = messages_from_dicts([{"role": "assistant", "tool_calls": [call]}])
        assert template.render([*USER, message]) == text


def test_an_empty_template_is_a_template() -> None:
    assert render("") == ""


@pytest.mark.parametrize("source", ["{{ '<think>' in messages[0].content }}", "{# <think> #}x", None])
def test_nothing_is_added_to_what_the_template_renders(source: str | None) -> None:
    assert "<think>" not in render(source)


def test_special_tokens_are_variables_that_a_request_can_override() -> None:
    template = ChatTemplate("{{ bos_token }}{{ eos_token }}", bos_token="<s>", eos_token="</s>")
    assert template.render(USER) == "<s></s>"
    assert template.render(USER, bos_token="<b>") == "<b></s>"


def test_developer_is_system_for_templates_that_do_not_know_it() -> None:
    message = Message(role="developer", content="d")
    assert render(SHOW, message) == "[system:d]"
    assert render(SHOW + "{# developer #}", message) == "[developer:d]"


def test_parts_are_joined_by_newlines_for_templates_that_want_strings() -> None:
    message = Message(role="user", content=(TextPart("a"), TextPart("b")))
    assert render(SHOW, message) == "[user:a\nb]"
    assert render("{{ messages[0].content | tojson }}", message) == '"a\\nb"'
    assert render("{{ '<' + messages[0].content + '>' }}", message) == "<a\nb>"


def test_parts_reach_templates_that_read_them() -> None:
    message = Message(role="user", content=(TextPart("a"), TextPart("b")))
    assert render(PARTS_ONLY, message) == "[<a><b>]"


PICTURES = (
    "{% for m in messages %}{{ m.role }}{% if m.content is string %}: {{ m.content }}{% else %}"
    "{{ ':' if m.content[0].type == 'image' else ': ' }}"
    "{% for part in m.content %}{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}{% endif %};"
    "{% endfor %}"
)


def picture(name: str) -> MediaPart:
    return MediaPart(Media("image", f"[{name}]", b""))


def test_a_template_writes_images_itself_and_markers_take_the_place_of_what_it_writes() -> None:
    asked = Message(role="user", content=(picture("a"), TextPart("and "), picture("b")))
    more = Message(role="user", content=(TextPart("See "), picture("a")))
    template = ChatTemplate(PICTURES, image_text="<image>")
    assert template.render([asked, more]) == "user:[a]and [b];user: See [a];"
    assert ChatTemplate(PICTURES).render([asked]) == "user: [a]and [b];"


def test_markers_stand_in_texts_where_the_images_of_a_template_cannot_be_told() -> None:
    asked = Message(role="user", content=(picture("a"), TextPart("is no <image>")))
    assert ChatTemplate(PICTURES, image_text="<image>").render([asked]) == "user: [a]is no <image>;"
    blind = "{% for m in messages %}{{ m.content }};{% endfor %}"
    assert ChatTemplate(blind, image_text="<image>").render([asked]) == "[a]is no <image>;"
    refuses = PICTURES.replace("'<image>' if", "raise_exception('none') if")
    assert ChatTemplate(refuses, image_text="<image>").render([asked]) == "user: [a]is no <image>;"


def test_a_string_becomes_one_part_for_templates_that_read_only_parts() -> None:
    assert render(PARTS_ONLY, *USER) == "[<hi>]"


def test_missing_content_is_none_if_the_template_knows_none() -> None:
    source = "{% for m in messages %}{{ '-' if m.content is none else m.content }}{% endfor %}"
    assert render(source, *USER, Message(role="assistant")) == "hi-"


@pytest.mark.parametrize(
    "source", [SHOW, "{% for m in messages %}{{ '[' + m.role + ':' + m.content + ']' }}{% endfor %}"]
)
def test_missing_content_is_empty_if_the_template_cannot_stand_none(source: str) -> None:
    assert render(source, *USER, Message(role="assistant")) == "[user:hi][assistant:]"


def test_history_reaches_templates_that_know_it() -> None:
    source = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}"
    raw = [
        {"role": "user", "content": "q", "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "r",
            "tool_calls": [{"id": "1", "function": {"name": "f"}}],
        },
        {"role": "tool", "content": "out", "tool_call_id": "1", "custom": {"x": [1]}},
    ]
    user, assistant, tool = [json.loads(line) for line in render(source, *messages_from_dicts(raw)).splitlines()]
    assert user["name"] == "ann"
    assert (assistant["reasoning_content"], assistant["thinking"]) == ("r", "r")
    assert assistant["tool_calls"] == [{"id": "1", "function": {"name": "f"}}]
    assert (tool["tool_call_id"], tool["custom"]) == ("1", {"x": [1]})


def test_tools_and_variables_reach_the_template() -> None:
    assert render("{{ tools | tojson }} {{ x.y }}", tools=[{"name": "f"}], x={"y": 1}) == '[{"name": "f"}] 1'
    assert render("{{ tools is none }} {{ x is defined }}") == "True False"


def test_the_messages_cannot_be_replaced_by_a_variable() -> None:
    with pytest.raises(InvalidInput) as caught:
        render(None, messages=[])
    assert caught.value.fields["parameter"] == "messages"


def test_variables_that_are_not_json_are_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        render(None, x=open)
    assert caught.value.fields["parameter"] == "x"


class TestContinueFinalMessage:
    def test_the_prompt_ends_with_the_text(self) -> None:
        messages = (*USER, Message(role="assistant", content="Sure: "))
        prompt = render(None, *messages, continue_final_message=True)
        assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nSure: "

    def test_the_template_sees_that_no_answer_is_to_be_opened(self) -> None:
        source = "{{ add_generation_prompt }}{{ messages[0].content }}"
        assert render(source, Message(role="assistant", content="a"), continue_final_message=True) == "Falsea"

    def test_a_template_that_trims_loses_the_trailing_space(self) -> None:
        source = "{% for m in messages %}<{{ m.content | trim }}>{% endfor %}"
        assert render(source, Message(role="assistant", content=" a "), continue_final_message=True) == "<a"

    def test_a_template_that_drops_the_message_is_an_error(self) -> None:
        with pytest.raises(TemplateError, match="changes or drops"):
            render("x", Message(role="assistant", content="a"), continue_final_message=True)

    def test_no_text_to_continue_is_an_error(self) -> None:
        source = "{% for m in messages %}{{ m.content or '' }}{% endfor %}"
        with pytest.raises(InvalidInput, match="no text to continue"):
            render(source, Message(role="assistant"), continue_final_message=True)


class TestErrors:
    def test_the_templates_own_message_is_kept(self) -> None:
        with pytest.raises(TemplateError, match="System role not supported"):
            render("{{ raise_exception('System role not supported') }}")

    @pytest.mark.parametrize(
        "source", ["{% if %}", "{% for x in y %}", "{{ 'x' | no_such_filter }}", "{{ x is no_test }}"]
    )
    def test_a_template_that_does_not_compile_is_refused_when_loaded(self, source: str) -> None:
        with pytest.raises(TemplateError, match="not valid, line 1"):
            ChatTemplate(source)

    @pytest.mark.parametrize(
        ("source", "reason"),
        [
            ("{{ a.b.c }}", "UndefinedError: 'a' is undefined"),
            ("{{ 'a' + 1 }}", "TypeError"),
            ("{{ 1 / 0 }}", "ZeroDivisionError"),
            ("{{ messages[0] + none }}", "TypeError"),
            ("{{ a | tojson }}", "not JSON serializable"),
            ("{% include 'x' %}", "no loader"),
            ("{{ '\\ud800' }}", "UnicodeEncodeError"),
            ("{{ ''.__class__.__mro__ }}", "SecurityError"),
            ("{{ messages.clear() }}", "SecurityError"),
            ("{% set ns = namespace(_x=1) %}", "SecurityError"),
            ("{% set ns = namespace() %}{% set ns._x = 1 %}", "SecurityError"),
        ],
    )
    def test_a_template_that_fails_says_why(self, source: str, reason: str) -> None:
        with pytest.raises(TemplateError, match="failed") as caught:
            render(source)
        assert reason in caught.value.message

    def test_too_long_a_source_is_refused(self) -> None:
        with pytest.raises(TemplateError, match="longer than"):
            ChatTemplate(" " * (1 << 21))

    def test_a_failed_render_leaves_the_template_usable(self) -> None:
        template = ChatTemplate("{{ raise_exception('no') if bad else 'ok' }}")
        with pytest.raises(TemplateError):
            template.render(USER, bad=True)
        assert template.render(USER) == "ok"
