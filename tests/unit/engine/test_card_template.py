from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.core.media import Media
from stoker.engine.card_template import CardTemplate
from stoker.engine.cards import ModelCard
from stoker.errors import InvalidInput, TemplateError
from stoker.text.chat_formats.alternation import alternating
from stoker.text.media_parts import MediaPart
from stoker.text.messages import Message, TextPart
from stoker.text.volatile import VolatileHeaders

CARD = ModelCard("m", "b", "a", "p", 1, 1, 1, 1, 1, 1, None, "<s>", "</s>", 1, 1, 1)
HI = [Message(role="user", content="hi")]


def of(template: str | None = None) -> CardTemplate:
    return CardTemplate(msgspec.structs.replace(CARD, chat_template=template))


def test_model_without_template_gets_chatml():
    assert of().render(HI) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_template_sees_tokens_flags_and_variables():
    template = of("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ add_generation_prompt }}{{ x }}")
    assert template.render(HI, template_kwargs={"x": 7}) == "<s>hi</s>True7"
    assert template.render(HI, add_generation_prompt=False) == "<s>hi</s>False"
    with pytest.raises(InvalidInput):
        template.render(HI, template_kwargs={"messages": []})


def test_final_message_can_be_continued():
    messages = [*HI, Message(role="assistant", content="Well,")]
    assert of().render(messages, continue_final_message=True).endswith("<|im_start|>assistant\nWell,")


def test_volatile_headers_are_dropped_before_rendering():
    template = CardTemplate(CARD, VolatileHeaders(["Request: .*"]))
    prompts = {template.render([Message(role="system", content=f"Request: {n}\nBe kind."), *HI]) for n in range(3)}
    assert len(prompts) == 1
    assert "Be kind." in prompts.pop()


def test_broken_template_fails_chats_only():
    template = of("{% if %}")
    for _ in range(2):
        with pytest.raises(TemplateError):
            template.render(HI)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_the_cards_system_prompt_opens_a_conversation_that_brings_none(role: str):
    template = CardTemplate(msgspec.structs.replace(CARD, system="Say arr."))
    assert template.render(HI).startswith("<|im_start|>system\nSay arr.<|im_end|>\n<|im_start|>user\nhi")
    assert "arr" not in template.render([Message(role=role, content="Be kind."), *HI])


def test_a_role_must_be_usual_or_one_of_the_template():
    critic = [Message(role="critic", content="bad"), *HI]
    with pytest.raises(InvalidInput, match=r"`messages\[0\].role` must be one of .*not 'critic'") as caught:
        of("{{ messages[0].content }}").render(critic)
    assert caught.value.fields["parameter"] == "messages[0].role"
    assert of("{% if messages[0].role == 'critic' %}{{ messages[0].content }}{% endif %}").render(critic) == "bad"


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_a_message_that_says_nothing_is_refused(role: str):
    with pytest.raises(InvalidInput, match=r"`messages\[1\].content` is missing"):
        of().render([*HI, Message(role=role)])
    assert of().render([*HI, Message(role="assistant"), *HI])


HISTORY = [
    *HI,
    Message(role="assistant", content=""),
    Message(role="user", content="again"),
]
PARTICULAR = """
{%- for m in messages %}
    {%- if m.role not in roles or not m.content %}{{ raise_exception("no " + m.role) }}{% endif %}
    {{- "[" + m.role + ": " + m.content + "]" }}
{%- endfor %}"""


def particular(*roles: str) -> CardTemplate:
    return of(f"{{% set roles = {list(roles)} %}}{PARTICULAR}")


def test_a_template_that_refuses_a_conversation_is_given_what_it_takes_for_granted():
    template = particular("system", "user", "assistant")
    assert template.render(HISTORY) == "[user: hi][assistant:  ][user: again]"
    developer = Message(role="developer", content="Be kind.")
    assert template.render([developer, *HI]) == "[system: Be kind.][user: hi]"


def test_a_question_begins_with_a_system_prompt_that_the_template_refuses():
    template, system = particular("user", "assistant"), Message(role="system", content="Be kind.")
    assert template.render([system, system, *HI]) == "[user: Be kind.\n\nBe kind.\n\nhi]"
    assert template.render([*HI, system]) == "[user: hi\n\nBe kind.]"
    parts = Message(role="user", content=(TextPart("a"), TextPart("b")))
    assert template.render([Message(role="developer", content="x"), parts]) == "[user: x\n\na\nb]"


def test_what_a_template_refuses_for_another_reason_is_refused_with_its_words():
    with pytest.raises(TemplateError, match="no assistant"):
        particular("system", "user").render(HISTORY)
    with pytest.raises(TemplateError, match="no user"):
        particular("system").render(HI)


def test_tools_have_all_that_a_template_takes_for_granted_if_it_refuses_them():
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": "now"}},
        {"type": "function", "function": {"name": "then", "description": None, "parameters": {"type": "x"}}},
    ]
    demanding = (
        "{% for f in tools or [] %}<{{ f.function.description + ':' + f.function.parameters.type }}>{% endfor %}"
    )
    template = of(Path("tests/golden/chat_templates/qwen3.jinja").read_text() + demanding)
    assert template.render(HI, tools=tools).endswith("<:object><:x>")


TEMPLATES = Path("tests/golden/chat_templates")


def said(role: str, text: str) -> Message:
    return Message(role=role, content=text)


def test_neighbors_of_one_role_are_one_message_if_a_template_wants_turns_that_alternate():
    twice = [said("system", "Be kind."), said("system", "Be brief."), said("user", "a"), said("user", "b")]
    once = [said("system", "Be kind.\n\nBe brief."), said("user", "a\n\nb")]
    for name in ("gemma3", "mistral"):
        template = of((TEMPLATES / f"{name}.jinja").read_text())
        assert template.render(twice) == template.render(once)
        late = [*HI, said("assistant", "hello"), said("system", "Be brief."), said("user", "again")]
        assert template.render(late) == template.render([*late[:2], said("user", "Be brief.\n\nagain")])
    assert of((TEMPLATES / "qwen3.jinja").read_text()).render(twice).count("<|im_start|>user") == 2, "it takes them"


def test_merged_messages_keep_images_and_reasoning():
    image = MediaPart(Media("image", "[image]", b""))
    seen = Message(role="user", content=(TextPart("look"), image))
    messages = [seen, said("user", "what?"), *(Message(role="assistant", content=t, reasoning=f"so {t}") for t in "ab")]
    asked, answer = alternating(messages)
    assert asked.content == (TextPart("look"), image, TextPart("what?"))
    assert (answer.text, answer.reasoning) == ("a\n\nb", "so a\n\nso b")


def test_calls_made_at_once_are_told_one_by_one_if_a_template_takes_no_others():
    calls: list[dict[str, Any]] = [
        {"id": f"call{number}", "type": "function", "function": {"name": "now", "arguments": {"n": number}}}
        for number in range(2)
    ]
    results = [Message(role="tool", content=f"{number} o'clock", tool_call_id=f"call{number}") for number in (1, 0)]
    parameters = {"type": "object", "properties": {}}
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": "now", "description": "time", "parameters": parameters}}
    ]
    template = of((TEMPLATES / "llama3.jinja").read_text())
    together = [*HI, Message(role="assistant", tool_calls=tuple(calls)), *results]
    apart = [*HI]
    for call, result in zip(calls, reversed(results), strict=True):
        apart += [Message(role="assistant", tool_calls=(call,)), result]
    assert template.render(together, tools=tools) == template.render(apart, tools=tools)
    with pytest.raises(TemplateError, match="single tool-calls"):
        template.render(together[:-1], tools=tools)
